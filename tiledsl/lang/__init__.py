"""What a kernel author imports. `tiledsl` exports all of it; docs/language.md is its reference."""

from __future__ import annotations

from tiledsl.lang import ptx
from tiledsl.layout.fragments import FragmentLayout

# `from .math import *` binds `math` as well, whose `__all__` is added below.
from .constants import *
from .debug import *
from .dim import *
from .dtypes import *
from .fragments import *
from .launch import *
from .layouts import *
from .loops import *
from .math import *
from .matrices import *
from .memory import *
from .movement import *
from .ranges import *
from .roles import *
from .scalar import *
from .schedules import *
from .sync import *
from .tma import *
from .warp import *
from .warpgroups import *

__all__: list[str] = ["FragmentLayout", "ptx"]
__all__ += constants.__all__
__all__ += debug.__all__
__all__ += dim.__all__
__all__ += dtypes.__all__
__all__ += fragments.__all__
__all__ += launch.__all__
__all__ += layouts.__all__
__all__ += loops.__all__
__all__ += math.__all__
__all__ += matrices.__all__
__all__ += memory.__all__
__all__ += movement.__all__
__all__ += ranges.__all__
__all__ += roles.__all__
__all__ += scalar.__all__
__all__ += schedules.__all__
__all__ += sync.__all__
__all__ += tma.__all__
__all__ += warp.__all__
__all__ += warpgroups.__all__
