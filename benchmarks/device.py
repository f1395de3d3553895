"""The GPU side of the harness: `tiledsl.inspect.frameworks`, for stand-alone programs."""

from __future__ import annotations

from typing import Any

from tiledsl.errors import DeviceError
from tiledsl.inspect import frameworks
from tiledsl.inspect.frameworks import Device

__all__ = ["DEFAULT_STREAM", "Device", "open_device", "pointer"]

DEFAULT_STREAM = 0
"""The stream on which torch works unless told otherwise."""


def open_device(format: str = "f32") -> Device:
    """The GPU that torch sees. Raises SystemExit that names what is missing."""
    try:
        return frameworks.open_device(format)
    except DeviceError as error:
        raise SystemExit(str(error)) from None


def pointer(array: Any) -> int:
    """The address of a CUDA array of any library."""
    return array.__cuda_array_interface__["data"][0]
