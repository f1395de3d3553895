"""What a kernel author imports. `tiledsl` exports all of it; docs/language.md is its reference."""

from __future__ import annotations

from tiledsl.lang import (
    constants,
    debug,
    dim,
    dtypes,
    fragments,
    launch,
    layouts,
    loops,
    math,
    matrices,
    memory,
    movement,
    ptx,
    ranges,
    roles,
    scalar,
    schedules,
    sync,
    tma,
    warp,
    warpgroups,
)
from tiledsl.lang.constants import *  # noqa: F403
from tiledsl.lang.debug import *  # noqa: F403
from tiledsl.lang.dim import *  # noqa: F403
from tiledsl.lang.dtypes import *  # noqa: F403
from tiledsl.lang.fragments import *  # noqa: F403
from tiledsl.lang.launch import *  # noqa: F403
from tiledsl.lang.layouts import *  # noqa: F403
from tiledsl.lang.loops import *  # noqa: F403
from tiledsl.lang.math import *  # noqa: F403
from tiledsl.lang.matrices import *  # noqa: F403
from tiledsl.lang.memory import *  # noqa: F403
from tiledsl.lang.movement import *  # noqa: F403
from tiledsl.lang.ranges import *  # noqa: F403
from tiledsl.lang.roles import *  # noqa: F403
from tiledsl.lang.scalar import *  # noqa: F403
from tiledsl.lang.schedules import *  # noqa: F403
from tiledsl.lang.sync import *  # noqa: F403
from tiledsl.lang.tma import *  # noqa: F403
from tiledsl.lang.warp import *  # noqa: F403
from tiledsl.lang.warpgroups import *  # noqa: F403
from tiledsl.layout.fragments import FragmentLayout

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
