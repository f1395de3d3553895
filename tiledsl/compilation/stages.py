"""`Stages`: one specialisation of a kernel, and what the passes make of it. `Unassembled`: up to its PTX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from tiledsl.boundary import stage
from tiledsl.compilation.explain import ASSEMBLED, EXPLAIN, printed_stages, reports, tensor_maps
from tiledsl.compilation.lowering import lower
from tiledsl.errors import TileError
from tiledsl.meaning import Meaning, meaning_of_kernel
from tiledsl.recursion import deep_recursion
from tiledsl.signatures.signature import Signature, Specialization

T = TypeVar("T")


@dataclass(frozen=True, repr=False, kw_only=True)
class Stages:
    """A specialisation for the target `arch`. `meaning`: that of the kernel then; a copy has only its digest, as guards
    belong to one process."""

    arch: str
    signature: Signature
    spec: Specialization
    meaning: Meaning | bytes | None = field(default=None, compare=False)
    _answers: dict[Any, Any] = field(default_factory=dict[Any, Any], init=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "meaning": self.meaning.digest if isinstance(self.meaning, Meaning) else self.meaning}

    def _holds(self) -> bool:
        """Does the kernel still have the meaning that it was compiled with?"""
        if isinstance(self.meaning, bytes):
            return meaning_of_kernel(self.signature.fn).digest == self.meaning
        return self.meaning is None or self.meaning.holds()

    @property
    def label(self) -> str:
        """Name and consts: ``shared_tiled(T=16)``."""
        return label_of(self.signature.name, self.spec)

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
            message = f"no stage {stage!r} of {self.signature.name}; there are: {', '.join(stages)}"
            raise TileError(f"{message}\n  fix: ask for one of them, or for a pass without its after:")
        return self._answer(printed_stages, locs)[stage]

    def _answer(self, question: Callable[..., dict[str, T]], about: object) -> dict[str, T]:
        """What the passes tell. They run for each question once more: neither a build nor the disk cache keeps the
        IR."""
        key = question.__name__, about
        if key not in self._answers:
            if not self._holds():
                name = self.signature.name
                message = f"what {name} reads has changed since it was compiled: its IR would be another kernel's"
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
        if what in ASSEMBLED:  # `Compiled` has it
            raise TileError(f"{self.label} was not assembled\n  fix: k.compile(...).explain({what!r})")
        question = tensor_maps if what == "tensor-maps" else reports
        return self._answer(question, f"{self.label} for {self.arch}")[what]


@dataclass(frozen=True, repr=False, kw_only=True)
class Unassembled(Stages):
    """The result of `k.lower(...)`: `ir` and `explain`, which need no tool; `llvm` and `ptx`, which need llvmlite.

    Nothing is computed before it is asked for, and nothing of it is in the disk cache.
    """

    @property
    def llvm(self) -> str:
        """Before LLVM's passes. Raises CompileErrors, and ToolNotFoundError without llvmlite."""
        return self._texts[0]

    @property
    def ptx(self) -> str:
        """As it goes to the assembler. Raises what `llvm` raises."""
        return self._texts[1]

    @cached_property
    def _texts(self) -> tuple[str, str]:
        from tiledsl.backends.ptx import TARGETS

        with stage("the PTX backend", self.signature.name, self.signature.loc), deep_recursion():
            from tiledsl.backends.ptx.codegen import emit_ptx

            return emit_ptx(lower(self.signature, self.spec, self.arch)[0], TARGETS[self.arch])

    def __repr__(self) -> str:
        return f"<Unassembled {self.label} for {self.arch}>"


def label_of(name: str, spec: Specialization) -> str:
    """A kernel's name and consts: ``shared_tiled(T=16)``."""
    return f"{name}({', '.join(f'{n}={_shown(v)}' for n, v in spec.consts)})"


def _shown(value: Any) -> str:
    return getattr(value, "__name__", repr(value))
