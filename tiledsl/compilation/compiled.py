"""`Compiled`: one specialisation of a kernel, built for one target, with its stages and reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, get_args

from tiledsl import html
from tiledsl.backends.protocol import Binary, Resources
from tiledsl.compilation.stages import Stages
from tiledsl.ir.abi import AbiArg, ArgKind
from tiledsl.ir.expr import PROCESSORS, parse_expr
from tiledsl.ir.expr import problem as grid_problem
from tiledsl.ir.tensor_maps import TensorMap, parse_tensor_map
from tiledsl.ir.types import DTYPES, INDEX
from tiledsl.signatures.signature import GlobalSpec

READERS: dict[str, Callable[[Any], Any]] = {
    "abi": lambda rows: tuple(AbiArg(kind, of, DTYPES[dtype], axis, tuple(n)) for kind, of, dtype, axis, n in rows),
    "grid": lambda texts: tuple(str(parse_expr(text)) for text in texts),
    "threads": tuple,
    "written": tuple,
    "resources": lambda fields: Resources(**fields),
    "cluster": tuple,
    "tensor_maps": lambda texts: tuple(map(parse_tensor_map, texts)),
}
"""How the fields of an image that JSON cannot represent as they are become values again."""
STAGES = ("llvm", "ptx", "cubin")


def _plain(value: Any) -> Any:
    """The JSON form of a value that JSON cannot represent as it is."""
    match value:
        case AbiArg():
            return [value.kind, value.name, value.dtype.name, value.axis, value.dims]
        case Resources():
            return asdict(value)
        case _:
            return str(value)


@dataclass(frozen=True, kw_only=True)
class Image(Binary):
    """A built kernel, as a launch and the disk cache need it.

    `abi`: the arguments. `grid`: blocks along x, y, z, as expressions of extents and scalars (``ceildiv(N, 16)``, say).
    `threads`: of a block along x, y, z. `written`: names of the tensors that it may write. `cluster`: blocks of
    a cluster along x, y, z. `tensor_maps`: passed after the arguments of `abi`. `dependent`: it waits itself for the
    previous grid of its stream.
    """

    abi: tuple[AbiArg, ...]
    grid: tuple[str, ...]
    threads: tuple[int, ...]
    shared_bytes: int
    written: tuple[str, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMap, ...] = ()
    dependent: bool = False

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a block along x, y, z."""
        x, y, z = (*self.threads, 1, 1)[:3]
        return x, y, z

    def to_bytes(self) -> bytes:
        """For the disk cache: JSON and the stages, separated by zero bytes, which only the cubin contains."""
        header = {f.name: getattr(self, f.name) for f in fields(Image) if f.name not in STAGES}
        text = json.dumps(header, default=_plain)
        return b"\0".join([text.encode(), self.llvm.encode(), self.ptx.encode(), self.cubin])

    @classmethod
    def from_bytes(cls, content: bytes) -> Image | None:
        """The image that `to_bytes` wrote; None for anything that `to_bytes` would write differently."""
        try:
            header, llvm, ptx, cubin = content.split(b"\0", len(STAGES))
            values = json.loads(header)
            values |= {name: read(values[name]) for name, read in READERS.items()}
            image = cls(**values, llvm=llvm.decode(), ptx=ptx.decode(), cubin=cubin)
            return image if image.to_bytes() == content and _is_typed(image) else None
        except Exception:
            return None


def _is_typed(image: Image) -> bool:
    """Return whether all fields have values of the right types, and numbers that a kernel can have."""
    used = image.resources
    arguments = [text for arg in image.abi for text in (arg.name, arg.kind)]
    texts = [image.name, image.arch, *image.grid, *image.written, *arguments]
    dims = [dim for arg in image.abi for dim in arg.dims]
    counts = [*image.threads, *image.cluster]
    values = {arg.name: arg.dtype for arg in image.abi if arg.kind in ("extent", "scalar") and arg.dtype.is_integer}
    sizes = [image.shared_bytes, *(getattr(used, f.name) for f in fields(used) if f.type == "int")]
    return (
        all(type(text) is str for text in texts)
        and all(type(count) is int and 0 < count < 1 << 31 for count in counts)
        and all(type(size) is int and 0 <= size < 1 << 31 for size in sizes)
        and all(type(arg.axis) is int and -1 <= arg.axis < 64 for arg in image.abi)
        and all(dim in values if isinstance(dim, str) else type(dim) is int and dim >= 0 for dim in dims)
        and all(arg.kind in get_args(ArgKind) for arg in image.abi)
        and 1 <= len(image.threads) <= 3
        and 1 <= len(image.grid) <= 3
        and not any(grid_problem(parse_expr(text), {PROCESSORS: INDEX, **values}) for text in image.grid)
        and len(image.cluster) == 3
        and type(used.limiter) is str
        and type(used.occupancy) is float
        and 0 <= used.occupancy <= 1
        and type(image.dependent) is bool
    )


@dataclass(frozen=True, repr=False, kw_only=True)
class Compiled(Image, Stages):
    """The result of `k.compile(...)`. `cached`: it came from the disk cache."""

    cached: bool = False

    @cached_property
    def sass(self) -> str:
        """The machine code, by nvdisasm. Raises ToolNotFoundError without it."""
        from tiledsl.backends.ptx.sass.disassemble import sass_text

        return sass_text(self.cubin)

    def explain(self, what: str) -> object:
        if what == "sass":
            from tiledsl.backends.ptx.sass.report import sass_report

            return sass_report(self.cubin, self.ptx)
        if what == "resources":
            from tiledsl.compilation.launch_report import ResourceReport, room_of

            title = f"{self.label} for {self.arch}"
            return ResourceReport(title, self.resources, room_of(self.arch, self.resources))
        return super().explain(what)

    def __repr__(self) -> str:
        lines = (f"\n  {name:<9}  {text}" for name, text in self._facts().items())
        return f"<Compiled {self._head()}{''.join(lines)}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html.section(self._head(), html.table(("", ""), [*self._facts().items()], (0, 1)))

    def _head(self) -> str:
        return f"{self.label} for {self.arch}{', from the disk cache' if self.cached else ''}"

    def _facts(self) -> dict[str, str]:
        r = self.resources
        tensors = ", ".join(f"{name}: {seen(s)}" for name, s in self.spec.tensors)
        # The pass `index-width` widens indices that a launch has proven to fit where the kernel's arithmetic needs it.
        sizes = [arg.dtype.bits for arg in self.abi if arg.kind in ("extent", "stride")]
        bits = max(sizes, default=self.spec.index_bits)
        cluster = "" if self.cluster == (1, 1, 1) else f", cluster {self.cluster}"
        level = "" if r.assembler_level == 3 else f", assembler level {r.assembler_level}"
        return {
            "tensors": f"{tensors}; {bits}-bit indices; writes {', '.join(self.written)}",
            "launch": f"grid ({', '.join(self.grid)}), block {self.block}{cluster}",
            "resources": f"{r.registers} registers, {r.shared} bytes shared, {r.spill_stores + r.spill_loads} spilled, "
            f"{r.blocks_per_sm} blocks per SM ({r.occupancy:.0%} occupancy, limited by {r.limiter}){level}",
        }


def seen(spec: GlobalSpec | None) -> str:
    """What the compiler knows about a tensor."""
    if spec is None:
        return "absent"
    return f"{spec.dtype} unit={spec.unit} align={spec.align}{' whole' if spec.whole else ''}"
