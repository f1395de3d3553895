"""The GPU side of the harness: `tiledsl.inspect.frameworks`, for stand-alone programs."""

from __future__ import annotations

from tiledsl.errors import DeviceError
from tiledsl.inspect import frameworks
from tiledsl.inspect.frameworks import Device

__all__ = ["Device", "open_device"]


def open_device(format: str = "f32") -> Device:
    """torch if it is installed and sees a GPU, else CuPy. Raises SystemExit that names what is missing."""
    try:
        return frameworks.open_device(format)
    except DeviceError as error:
        raise SystemExit(str(error)) from None
