"""What some targets have and others do not. (PTX ISA: target notes of the instructions.)"""

from __future__ import annotations

__all__ = ["FEATURES", "FEATURE_NAMES"]

FEATURE_NAMES = {
    "mbarrier": "mbarriers that count bytes",
    "tma": "tensor memory access",
    "cluster": "clusters",
    "multicast": "loads for several blocks of a cluster",
    "elect": "elect.sync",
    "griddepcontrol": "programmatic dependent launch",
    "setmaxnreg": "setmaxnreg",
    "wgmma": "wgmma",
}
"""What messages call the features."""

_FROM_HOPPER_ON = ("sm_90", "sm_90a", "sm_100a", "sm_120a")

FEATURES: dict[str, tuple[str, ...]] = {
    "mbarrier": _FROM_HOPPER_ON,  # one that counts bytes, and its try_wait
    "tma": _FROM_HOPPER_ON,
    "cluster": _FROM_HOPPER_ON,
    "multicast": ("sm_90", "sm_90a", "sm_100a"),  # by sm_120a, too, but as calls of a function
    "elect": _FROM_HOPPER_ON,
    "griddepcontrol": _FROM_HOPPER_ON,
    "setmaxnreg": ("sm_90a", "sm_100a", "sm_120a"),
    "wgmma": ("sm_90a",),
}
"""The targets that have each of them."""
