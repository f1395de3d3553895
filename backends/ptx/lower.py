"""A thread-level kernel as an LLVM module: parameters, launch bounds, shared memory, then the rules."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Sequence

from tiledsl.arch import MAP_ALIGNMENT, MAP_BYTES, Target
from tiledsl.backends import ptx
from tiledsl.backends.ptx import debug_rules
from tiledsl.backends.ptx.context import Lowering
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I8, POINTERS, VOID, global_variable, integer, memory_type
from tiledsl.errors import CompileError, Loc
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import barriers
from tiledsl.ir.types import BOOL, PtrType
from tiledsl.layout.shared import SPANS, Paneled
from tiledsl.passes.analysis.written import WrittenMemory, memory_of

for _file in iter_modules(ptx.__path__, f"{ptx.__name__}."):
    if _file.name.endswith("_rules"):
        import_module(_file.name)  # registers its rules

NAME = re.compile(r"(?!WARP_SZ$)(?:[A-Za-z]|_[A-Za-z0-9_])[A-Za-z0-9_]*")
"""Python names that PTX takes for an entry (PTX ISA: Identifiers; `WARP_SZ` is a constant)."""

TRIPLE = "nvptx64-nvidia-cuda"
SHARED_ALIGN = Paneled(max(SPANS)).alignment
"""Of the dynamic shared array: what the widest swizzle of TMA and wgmma needs."""


def lower_kernel(kernel: Kernel, target: Target, data_layout: str) -> tuple[Any, Sequence[Loc]]:
    """The llvmlite module of `kernel`, and its places by number (see `debuginfo`).

    `data_layout` is the target machine's.
    """
    assert kernel.level == "thread", f"{kernel.name} is at {kernel.level} level; run the passes first"
    if not NAME.fullmatch(kernel.name):
        raise CompileError(
            f"PTX cannot have a kernel called {kernel.name!r}",
            kernel.loc,
            "use ASCII letters, digits and underscores",
            code="C114",
        )
    module = ir.Module(name=kernel.name)
    module.triple, module.data_layout = TRIPLE, data_layout
    function = _declare(kernel, module)
    # All shared memory is one array whose size the launch gives, so that tiles may exceed 48 KiB.
    shared = global_variable(module, ir.ArrayType(I8, 0), "$shared", "shared")
    shared.linkage, shared.align = "external", SHARED_ALIGN
    lw = Lowering(kernel, target, module, function, shared)
    lw.tensor_maps = function.args[len(kernel.body.args) :]
    for value, argument in zip(kernel.body.args, function.args, strict=False):
        is_bool = value.type == BOOL
        lw.values[value] = lw.b.icmp("ne", argument, integer(0, I8)) if is_bool else argument
    lw.lower_block(kernel.body)
    lw.b.ret_void()
    debug_rules.define_variables(lw)
    return module, list(lw.debug.places)


def _declare(kernel: Kernel, module: Any) -> Any:
    """The entry, with `.reqntid`: the launch always has exactly `kernel.threads`, and ptxas needs a
    bound on threads (for setmaxnreg, and to spend registers)."""
    types = [memory_type(a.type) for a in kernel.body.args]
    types += [POINTERS["generic"]] * len(kernel.tensor_maps)
    function = ir.Function(module, ir.FunctionType(VOID, types), kernel.name)
    function.calling_convention = "ptx_kernel"
    threads = ",".join(str(n) for n in (*kernel.threads, 1, 1)[:3])
    _attribute(function, "nounwind")
    _attribute(function, f'"nvvm.reqntid"="{threads}"')
    # setmaxnreg goes from what the launch gives each thread, which ptxas takes from the threads of an SM.
    moves = any(isinstance(op, barriers.SetMaxNReg) for op in kernel.walk())
    if kernel.blocks_per_sm or moves:
        _attribute(function, f'"nvvm.minctasm"="{max(1, kernel.blocks_per_sm)}"')
    if kernel.cluster != (1, 1, 1):
        _attribute(function, f'"nvvm.cluster_dim"="{",".join(map(str, kernel.cluster))}"')
    read_only = read_only_pointers(kernel)
    for number, argument in enumerate(function.args[len(kernel.body.args) :]):
        argument.name = f"tensor_map_{number}"
        # Without `grid_constant` LLVM copies the map to local memory, where TMA cannot read it.
        for text in (f"byval([{MAP_BYTES} x i8])", f"align {MAP_ALIGNMENT}", '"nvvm.grid_constant"'):
            _attribute(argument, text)
    for value, argument in zip(kernel.body.args, function.args, strict=False):
        if value.name:
            argument.name = value.name
        if isinstance(value.type, PtrType):
            argument.attributes.align = value.type.dtype.bytes
        if value in read_only:
            _attribute(argument, "noalias")
            _attribute(argument, "readonly")
    return function


def _attribute(holder: Any, text: str) -> None:
    """Add an attribute as LLVM spells it; llvmlite's own `add` knows a short list only."""
    set[str].add(holder.attributes, text)


def read_only_pointers(kernel: Kernel) -> set[Value]:
    """Pointer parameters through which the kernel makes plain loads, and asynchronous copies from there, alone.

    They are marked ``noalias readonly``, so that loads become ``ld.global.nc`` and may move across
    barriers, fences and stores. That is sound because a kernel's outputs must not overlap its inputs (the rule
    of BLAS): the runtime must refuse a launch where the memory of a tensor that is written overlaps
    another tensor's. Tensors that are only read may overlap each other. A kernel that waits for others, which may
    write what it reads, has none (`_waits_for_others`).
    """
    written = WrittenMemory(kernel)
    if _waits_for_others(list(kernel.walk()), written):
        return set()
    return {a for a in kernel.body.args if isinstance(a.type, PtrType) and not written.may_write(a)}


def _waits_for_others(ops: Sequence[Op], written: WrittenMemory) -> bool:
    """Does the kernel wait for other kernels, or for the host, that run at the same time?

    It does by programmatic dependent launch; with scope sys; and if it reads by atomic operations what it never
    writes, which then others write.
    """
    if any(op.sync.kernels == "wait" or "sys" in (op.sync.releases, op.sync.acquires) for op in ops):
        return True
    atomics = [access for op in ops for access in op.accesses() if access.atomic]
    if any(access.atomic == "sys" for access in atomics):
        return True
    pointers = [(a.memory, a.memory.type) for a in atomics if isinstance(a.memory, Value)]
    places = [memory_of(p) for p, type_ in pointers if isinstance(type_, PtrType) and type_.space == "global"]
    return any(place is None or not written.may_write(place) for place in places)
