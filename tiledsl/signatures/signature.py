"""What a kernel's parameters are, and what one specialisation of it fixes.

`Signature` is read once from the annotations; `Specialization` is made for each launch or compile
and is all that the compiler sees of the arguments. It never holds sizes.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Callable

from tiledsl.errors import Loc, TileError
from tiledsl.function import ByReference, named
from tiledsl.ir.types import DType, GlobalType


class _Required:
    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = _Required()
"""Default of a const parameter that has none."""


@dataclass(frozen=True, slots=True)
class GlobalParam:
    """``A: Global[f32, M, K]``. `dtype` is a str, the variable's name, in a dtype-generic kernel.

    `dims`: an int is a static extent, a str the name of a run-time one. `optional`: None is accepted.
    `default`: None where ``= None`` was written. `keyword`: it is keyword only.
    """

    name: str
    dtype: DType | str
    dims: tuple[int | str, ...]
    optional: bool = False
    default: Any = REQUIRED
    keyword: bool = False


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """``alpha: f32 = 1.0``: passed at run time."""

    name: str
    dtype: DType
    default: Any = REQUIRED
    keyword: bool = False


@dataclass(frozen=True, slots=True)
class ConstParam:
    """``T: const = 16``: a compile-time parameter, keyword only. `type` is int unless stated."""

    name: str
    type: Any = int
    default: Any = REQUIRED


@dataclass(frozen=True)
class Signature(ByReference):
    """A kernel's parameters: `params` in order (tensors and scalars), then `consts`.

    `arch`: the target the kernel insists on (``@tile_kernel(arch="sm_90a")``), or "".
    """

    name: str
    fn: Callable[..., Any]
    params: tuple[GlobalParam | ScalarParam, ...]
    consts: tuple[ConstParam, ...]
    loc: Loc
    arch: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the signature of its kernel, which is pickled by its name."""
        kernel = named(self.fn)
        if getattr(kernel, "signature", None) is not self:
            message = f"{self.name} is not found under its name, {self.fn.__module__}.{self.fn.__qualname__}"
            raise TileError(f"{message}, by which it is pickled\n  fix: define it at the top level of a module")
        return operator.attrgetter("signature"), (kernel,)

    @property
    def tensors(self) -> tuple[GlobalParam, ...]:
        return tuple(p for p in self.params if isinstance(p, GlobalParam))

    @property
    def scalars(self) -> tuple[ScalarParam, ...]:
        return tuple(p for p in self.params if isinstance(p, ScalarParam))

    @property
    def dtype_variables(self) -> tuple[str, ...]:
        """Names of the dtype variables, in order of first appearance."""
        return tuple(dict.fromkeys(p.dtype for p in self.tensors if isinstance(p.dtype, str)))

    @property
    def open_dtypes(self) -> dict[str, str]:
        """The dtype variables, by their own names and by those of the tensors that have them."""
        by_tensor = {p.name: p.dtype for p in self.tensors if isinstance(p.dtype, str)}
        return {name: name for name in self.dtype_variables} | by_tensor

    @property
    def usage(self) -> str:
        """How to call the kernel, for messages: ``gemm(A, B, C, *, T=16)``."""

        def shown(param: GlobalParam | ScalarParam | ConstParam) -> str:
            return param.name if param.default is REQUIRED else f"{param.name}={param.default!r}"

        ordinary = [shown(p) for p in self.params if not p.keyword]
        named = [*(shown(p) for p in self.params if p.keyword), *map(shown, self.consts)]
        return f"{self.name}({', '.join([*ordinary, *(['*', *named] if named else [])])})"


@dataclass(frozen=True, slots=True)
class GlobalSpec:
    """What a specialisation knows of one tensor: its dtype, the axis of stride 1 (or -1), the
    largest of 16, 8, 4, 2, 1 bytes that divides its address and its other strides in bytes, and
    whether the extent along the axis of stride 1 is a multiple of those bytes, too."""

    dtype: DType
    unit: int
    align: int
    whole: bool = False


@dataclass(frozen=True)
class Specialization:
    """Everything that the compiled code depends on besides the source and the toolchain.

    `tensors`: by parameter name; None for an absent optional tensor. `consts`: by name.
    `index_bits`: 32 if every extent and every element offset fits in 31 bits, else 64.
    """

    tensors: tuple[tuple[str, GlobalSpec | None], ...]
    consts: tuple[tuple[str, Any], ...]
    index_bits: int = 32

    def global_type(self, param: GlobalParam) -> GlobalType | None:
        spec = dict(self.tensors)[param.name]
        return None if spec is None else GlobalType(spec.dtype, param.dims, spec.unit, spec.align, spec.whole)
