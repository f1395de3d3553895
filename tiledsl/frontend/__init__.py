"""The frontend: from a `@tile_kernel` function to tile-level IR, specialised for one launch.

`build` executes the function's AST: compile-time values are plain Python objects, run-time ones are
IR values. Every op carries the line it came from, through inlined tile functions.
"""

from __future__ import annotations

from tiledsl.errors import CompileErrors
from tiledsl.frontend import assign, calls, expressions, intrinsics, loops, products, statements
from tiledsl.frontend.attributes import lang_dtype
from tiledsl.frontend.budget import OutOfBudget
from tiledsl.frontend.control import run_statements
from tiledsl.frontend.fragments import check_threads
from tiledsl.frontend.frame import Env, Frame, Unit
from tiledsl.frontend.intrinsics.async_copies import group_dropped
from tiledsl.frontend.intrinsics.rings import check_rings
from tiledsl.frontend.intrinsics.roles import end_stores
from tiledsl.frontend.pending import check_pending
from tiledsl.frontend.targets import TargetBuilder
from tiledsl.ir.core import Block, Kernel
from tiledsl.ir.ops import barriers, control, gpu
from tiledsl.ir.ops.roles import roles_of
from tiledsl.ir.types import GlobalType
from tiledsl.signatures.signature import GlobalParam, Signature, Specialization

# These register the cases of `evaluate` and `execute` and the handlers of the language's functions.
_CASES = (assign, calls, expressions, intrinsics, loops, products, statements)


def build(signature: Signature, spec: Specialization, arch: str) -> Kernel:
    """The tile-level kernel of one specialisation. Raises CompileErrors with up to 20 errors.

    The body's arguments are the present tensors and the scalars, in the order of the signature.
    """
    types = {p.name: spec.global_type(p) if isinstance(p, GlobalParam) else p.dtype for p in signature.params}
    present = {name: type_ for name, type_ in types.items() if type_ is not None}
    body = Block([*present.values()], [*present])
    kernel = Kernel(signature.name, body, (), (), index_bits=spec.index_bits, loc=signature.loc)
    unit = Unit(kernel, TargetBuilder(body, arch, signature.loc))
    for param in signature.tensors:
        if isinstance(param.dtype, str) and isinstance(type_ := types[param.name], GlobalType):
            unit.typevars[param.dtype] = lang_dtype(type_.dtype)
    for arg in body.args:
        for axis, dim in enumerate(arg.type.dims if isinstance(arg.type, GlobalType) else ()):
            if isinstance(dim, str):
                unit.extents.setdefault(dim, (arg, axis))
    env: Env = dict.fromkeys(types) | {arg.name: arg for arg in body.args} | dict(spec.consts)
    frame = Frame(unit, signature.fn, env)
    try:
        run_statements(frame, frame.source.tree.body)
    except OutOfBudget as error:
        unit.report(error)
    unit.raise_errors()
    if not kernel.threads and (roles := roles_of(body)):
        kernel.threads = (sum(role.all_threads for role in roles),)
    for what, declared in (("grid", kernel.grid), ("threads", kernel.threads)):
        if not declared:
            fix = "begin with `bx, by = grid(cdiv(N, T), cdiv(M, T))` and `tx, ty = threads(T, T)`"
            error = frame.error(
                frame.source.tree, f"the kernel {signature.name} does not call {what}()", fix, code="C115"
            )
            raise CompileErrors([error])
    for check in (check_threads, group_dropped, check_pending, check_rings):
        check(unit)
    unit.raise_errors()
    _end(frame)
    return kernel


def _end(frame: Frame) -> None:
    unit, builder = frame.unit, frame.builder
    builder.loc = unit.kernel.loc
    if None in unit.cooperation.stores:
        end_stores(builder)
    if unit.cooperation.cluster is not None and unit.cooperation.cluster.blocks > 1:
        # No block of a cluster ends while another one may still write to its shared memory or arrive there; the threads
        # of a warp that came out of different roles meet again.
        for op in (gpu.SyncWarp(), barriers.ClusterArrive(), barriers.ClusterWait()):
            builder.add(op)
    builder.add(control.Return())
