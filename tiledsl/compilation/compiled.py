"""`Compiled`: one specialisation of a kernel built for one target, and what can be asked of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable

from tiledsl.backends.protocol import Resources
from tiledsl.compilation.cache import Entry
from tiledsl.errors import Loc, TileError
from tiledsl.ir.abi import AbiArg
from tiledsl.ir.expr import Expr, parse_expr
from tiledsl.ir.tensor_maps import TensorMap, parse_tensor_map
from tiledsl.ir.types import DTYPES
from tiledsl.meaning import Meaning, meaning_of_kernel
from tiledsl.signatures.signature import GlobalSpec, Signature, Specialization

if TYPE_CHECKING:
    from tiledsl.compilation.explain import Report
    from tiledsl.ir.core import Kernel

__all__ = ["Compiled", "Image"]


@dataclass(frozen=True)
class Image:
    """What a launch and the disk cache need of a built kernel.

    `written`: the tensors that it may write. `timings`: seconds by stage, of the run that built it.
    `cluster`: blocks of a cluster along x, y, z. `tensor_maps`: passed behind the arguments of `abi`.
    `dependent`: it waits by itself for the grid before it in its stream.
    """

    name: str
    arch: str
    abi: tuple[AbiArg, ...]
    grid: tuple[Expr, ...]
    threads: tuple[int, ...]
    shared_bytes: int
    written: frozenset[str]
    resources: Resources
    llvm: str
    ptx: str
    cubin: bytes
    timings: dict[str, float]
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMap, ...] = ()
    dependent: bool = False

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a block along x, y, z."""
        x, y, z = (*self.threads, 1, 1)[:3]
        return x, y, z

    def to_entry(self) -> Entry:
        header = {
            "name": self.name,
            "arch": self.arch,
            "abi": [[a.kind, a.name, a.dtype.name, a.axis, list(a.dims)] for a in self.abi],
            "grid": [str(e) for e in self.grid],
            "threads": list(self.threads),
            "shared_bytes": self.shared_bytes,
            "written": sorted(self.written),
            "resources": self.resources.to_dict(),
            "timings": self.timings,
            "cluster": list(self.cluster),
            "tensor_maps": [str(m) for m in self.tensor_maps],
            "dependent": self.dependent,
        }
        return Entry(header, {"llvm": self.llvm.encode(), "ptx": self.ptx.encode(), "cubin": self.cubin})

    @classmethod
    def from_entry(cls, entry: Entry) -> Image | None:
        """The image that `to_entry` put into an entry; None if anything in it is not as `to_entry` writes it."""
        try:
            image = cls._read(entry.header, entry.parts)
            whole = json.dumps(image.to_entry().header) == json.dumps(entry.header)
        except Exception:
            return None
        counts = (*image.threads, *image.cluster, image.shared_bytes, image.resources.threads)
        fits = len(image.cluster) == 3 and all(type(n) is int and n >= 0 for n in counts)
        return image if whole and fits else None

    @classmethod
    def _read(cls, header: dict[str, Any], parts: dict[str, bytes]) -> Image:
        return cls(
            name=header["name"],
            arch=header["arch"],
            abi=tuple(
                AbiArg(k, name, DTYPES[dtype], axis, tuple(dims)) for k, name, dtype, axis, dims in header["abi"]
            ),
            grid=tuple(parse_expr(text) for text in header["grid"]),
            threads=tuple(header["threads"]),
            shared_bytes=header["shared_bytes"],
            written=frozenset(header["written"]),
            resources=Resources(**header["resources"]),
            llvm=parts["llvm"].decode(),
            ptx=parts["ptx"].decode(),
            cubin=parts["cubin"],
            timings=header["timings"],
            cluster=tuple(header["cluster"]),
            tensor_maps=tuple(parse_tensor_map(text) for text in header["tensor_maps"]),
            dependent=header["dependent"],
        )


@dataclass(frozen=True)
class Compiled:
    """What `k.compile(...)` gives. `cached`: it came from the disk cache. `meaning`: what it was compiled from; of it
    a copy has the digest alone, as guards are of one process."""

    signature: Signature
    spec: Specialization
    image: Image
    cached: bool = False
    meaning: Meaning | bytes | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "meaning": self.meaning.digest if isinstance(self.meaning, Meaning) else self.meaning}

    def _holds(self) -> bool:
        """Does the kernel still mean what it was compiled from?"""
        if isinstance(self.meaning, bytes):
            return meaning_of_kernel(self.signature.fn).digest == self.meaning
        return self.meaning is None or self.meaning.holds()

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def arch(self) -> str:
        return self.image.arch

    @property
    def llvm(self) -> str:
        """The LLVM IR, as given to LLVM."""
        return self.image.llvm

    @property
    def ptx(self) -> str:
        return self.image.ptx

    @property
    def cubin(self) -> bytes:
        """The image that the driver loads."""
        return self.image.cubin

    @cached_property
    def sass(self) -> str:
        """The machine code, by nvdisasm. Raises ToolNotFoundError without it."""
        from tiledsl.backends.ptx import disassemble

        return disassemble(self.cubin)

    @property
    def resources(self) -> Resources:
        """Registers, spills, shared memory, occupancy and what limits it."""
        return self.image.resources

    @property
    def grid(self) -> tuple[str, ...]:
        """Blocks along x, y, z, as expressions of extents and scalars: ``ceildiv(N, 16)`` and the like."""
        return tuple(str(e) for e in self.image.grid)

    @property
    def threads(self) -> tuple[int, ...]:
        """Threads of a block along x, y, z."""
        return self.image.threads

    @property
    def written(self) -> frozenset[str]:
        """Names of the tensors that the kernel may write."""
        return self.image.written

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each stage took when this was built."""
        return dict(self.image.timings)

    @property
    def stages(self) -> tuple[str, ...]:
        """The names that `ir` takes, in order: "tile", "after:<pass>" for each pass, "thread"."""
        return tuple(self._stages)

    def ir(self, stage: str = "tile", *, locs: bool = False) -> str:
        """The IR: "tile" (from the frontend), a pass's name (or "after:<pass>"), or "thread" (for the backends).

        `locs`: with the Python line of each op. Raises TileError for an unknown stage.
        """
        stages = self._stages
        if stage not in stages and f"after:{stage}" in stages:
            stage = f"after:{stage}"
        if stage not in stages:
            message = f"no stage {stage!r} of {self.name}; there are: {', '.join(stages)}"
            raise TileError(f"{message}\n  fix: ask for one of them, or for a pass without its after:")
        text, lines = stages[stage]
        return _located(text, lines) if locs else text

    @cached_property
    def reports(self) -> dict[str, Report]:
        """Those of `explain` that need the passes, which run once for them."""
        return self._look()

    @cached_property
    def _stages(self) -> dict[str, tuple[str, list[Loc]]]:
        """The IR at each stage, by its name, with the lines of its ops in the order in which they are printed."""
        from tiledsl.ir.printer import print_kernel

        found: dict[str, tuple[str, list[Loc]]] = {}

        def show(name: str, kernel: Kernel) -> None:
            found[name] = print_kernel(kernel), [kernel.loc, *(op.loc for op in kernel.walk())]

        self.__dict__.setdefault("reports", self._look(show))
        return found

    def _look(self, show: Callable[[str, Kernel], None] | None = None) -> dict[str, Report]:
        """Run the compiler's middle once more: neither a build nor the disk cache keeps any IR."""
        from tiledsl.compilation.explain import reports_of

        if not self._holds():
            message = f"what {self.name} reads has changed since it was compiled: its IR would be another kernel's"
            raise TileError(f"{message}\n  fix: compile it again")
        return reports_of(self.signature, self.spec, self.arch, f"{self.label} for {self.arch}", show)

    def explain(self, what: str) -> Report:
        """What was decided and what became of it, as data whose `str` is a table.

        "banks": each access to shared memory with its wavefronts in row order and as laid out, and each tile's
        layout. Raises TileError for a name that `explain.EXPLAIN` does not have.
        """
        from tiledsl.compilation.explain import EXPLAIN, sass_of

        if what not in EXPLAIN:
            raise TileError(f"no explanation is called {what!r}\n  fix: ask for one of {', '.join(EXPLAIN)}")
        if what == "sass":
            return sass_of(self.cubin, self.ptx, self.resources.assembler_level)
        return self.reports[what]

    @property
    def label(self) -> str:
        """Name and consts: ``shared_tiled(T=16)``."""
        return f"{self.name}({', '.join(f'{n}={_shown(v)}' for n, v in self.spec.consts)})"

    def __repr__(self) -> str:
        r = self.resources
        head = f"{self.label} for {self.arch}"
        tensors = ", ".join(f"{name}: {_seen(s)}" for name, s in self.spec.tensors)
        spilled = r.spill_stores + r.spill_loads
        return "\n".join(
            (
                f"<Compiled {head}",
                f"  tensors    {tensors}; {self._index_bits()}-bit indices; writes {', '.join(sorted(self.written))}",
                f"  launch     grid ({', '.join(self.grid)}), block {self.image.block}{self._clusters()}",
                f"  resources  {r.registers} registers, {r.shared} bytes shared, {spilled} spilled, "
                f"{r.blocks_per_sm} blocks per SM ({r.occupancy:.0%} occupancy, limited by {r.limiter}){self._level()}",
                f"  built in   {self._times()}{' (from the disk cache)' if self.cached else ''}>",
            )
        )

    def _index_bits(self) -> int:
        """As a launch proves it, or more, where the kernel's own arithmetic needs it (the pass `index-width`)."""
        sizes = [arg.dtype.bits for arg in self.image.abi if arg.kind in ("extent", "stride")]
        return max(sizes, default=self.spec.index_bits)

    def _clusters(self) -> str:
        cluster = self.image.cluster
        return "" if cluster == (1, 1, 1) else f", cluster {cluster}"

    def _level(self) -> str:
        level = self.resources.assembler_level
        return "" if level == 3 else f", assembler level {level}"

    def _times(self) -> str:
        return ", ".join(f"{stage} {seconds * 1e3:.0f} ms" for stage, seconds in self.timings.items())


def _located(text: str, locs: list[Loc]) -> str:
    """The text of a kernel with the lines of its ops."""
    from tiledsl.ir.parser import parse_kernel
    from tiledsl.ir.printer import print_kernel

    kernel = parse_kernel(text)
    for located, loc in zip((kernel, *kernel.walk()), locs, strict=True):
        located.loc = loc
    return print_kernel(kernel, locs=True)


def _seen(spec: GlobalSpec | None) -> str:
    """What the compiler knows of a tensor."""
    if spec is None:
        return "absent"
    return f"{spec.dtype} unit={spec.unit} align={spec.align}{' whole' if spec.whole else ''}"


def _shown(value: Any) -> str:
    return getattr(value, "__name__", repr(value))
