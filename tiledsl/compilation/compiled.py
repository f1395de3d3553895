"""`Compiled`: one specialisation of a kernel, built for one target, with its stages and reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, TypeVar

from tiledsl import html
from tiledsl.backends.protocol import Binary, Resources
from tiledsl.compilation.explain import EXPLAIN, printed_stages, reports
from tiledsl.errors import TileError
from tiledsl.ir.abi import AbiArg
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.tensor_maps import TensorMap, parse_tensor_map
from tiledsl.ir.types import DTYPES
from tiledsl.meaning import Meaning, meaning_of_kernel
from tiledsl.signatures.signature import GlobalSpec, Signature, Specialization

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

T = TypeVar("T")


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
            whole = image.to_bytes() == content
        except Exception:
            return None
        counts = (*image.threads, *image.cluster, image.shared_bytes, image.resources.threads)
        fits = len(image.cluster) == 3 and all(type(n) is int and n >= 0 for n in counts)
        return image if whole and fits else None


@dataclass(frozen=True, repr=False, kw_only=True)
class Compiled(Image):
    """The result of `k.compile(...)`. `cached`: it came from the disk cache. `meaning`: that of the kernel when it was
    compiled; a copy has only its digest, as guards belong to one process."""

    signature: Signature
    spec: Specialization
    cached: bool = False
    meaning: Meaning | bytes | None = field(default=None, compare=False)
    _answers: dict[Any, Any] = field(default_factory=dict[Any, Any], init=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "meaning": self.meaning.digest if isinstance(self.meaning, Meaning) else self.meaning}

    def _holds(self) -> bool:
        """Does the kernel still have the meaning that it was compiled with?"""
        if isinstance(self.meaning, bytes):
            return meaning_of_kernel(self.signature.fn).digest == self.meaning
        return self.meaning is None or self.meaning.holds()

    @cached_property
    def sass(self) -> str:
        """The machine code, by nvdisasm. Raises ToolNotFoundError without it."""
        from tiledsl.backends.ptx.sass.disassemble import sass_text

        return sass_text(self.cubin)

    @property
    def stages(self) -> tuple[str, ...]:
        """The names that `ir` takes, in order: "tile", "after:<pass>" for each pass, "thread"."""
        from tiledsl.passes.pipeline import stages

        return ("tile", *(f"after:{name}" for name in stages()), "thread")

    def ir(self, stage: str = "tile", *, locs: bool = False) -> str:
        """The IR: "tile" (from the frontend), a pass's name (or "after:<pass>"), or "thread" (for the backends).

        `locs`: with the Python line of each op. Raises TileError for an unknown stage.
        """
        stages = self.stages
        if stage not in stages and f"after:{stage}" in stages:
            stage = f"after:{stage}"
        if stage not in stages:
            message = f"no stage {stage!r} of {self.name}; there are: {', '.join(stages)}"
            raise TileError(f"{message}\n  fix: ask for one of them, or for a pass without its after:")
        return self._answer(printed_stages, locs)[stage]

    def _answer(self, question: Callable[..., dict[str, T]], about: object) -> dict[str, T]:
        """What the passes tell. They run for each question once more: neither a build nor the disk cache keeps the
        IR."""
        key = question.__name__, about
        if key not in self._answers:
            if not self._holds():
                message = f"what {self.name} reads has changed since it was compiled: its IR would be another kernel's"
                raise TileError(f"{message}\n  fix: compile it again")
            self._answers[key] = question(self.signature, self.spec, self.arch, about)
        return self._answers[key]

    def explain(self, what: str) -> object:
        """What the compiler decided and what resulted, as data whose `str` is a table.

        "banks": each access to shared memory with its wavefronts in row order and as laid out, and each tile's
        layout. Raises TileError for a name that `explain.EXPLAIN` does not have.
        """
        if what not in EXPLAIN:
            raise TileError(f"no explanation is called {what!r}\n  fix: ask for one of {', '.join(EXPLAIN)}")
        if what == "sass":
            from tiledsl.backends.ptx.sass.report import sass_report

            return sass_report(self.cubin, self.ptx)
        return self._answer(reports, f"{self.label} for {self.arch}")[what]

    @property
    def label(self) -> str:
        """Name and consts: ``shared_tiled(T=16)``."""
        return label_of(self.name, self.spec)

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


def label_of(name: str, spec: Specialization) -> str:
    """A kernel's name and consts: ``shared_tiled(T=16)``."""
    return f"{name}({', '.join(f'{n}={_shown(v)}' for n, v in spec.consts)})"


def _shown(value: Any) -> str:
    return getattr(value, "__name__", repr(value))
