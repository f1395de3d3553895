"""The CUDA driver, launches and array arguments. Nothing here is loaded before a kernel needs it."""

from __future__ import annotations


def gpu_arch() -> str:
    """The target of the GPU that a NumPy call would run on, such as "sm_90a"; "" without driver or GPU."""
    from tiledsl.runtime.driver import available

    found = available()
    return "" if found is None else found.target_of(found.current_device())
