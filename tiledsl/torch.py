"""`gemm` as operators of PyTorch: with a gradient, under torch.compile, in CUDA graphs.

- `gemm` is ``torch.ops.tiledsl.gemm``: a new result, which has a gradient.
- `gemm_into` is ``torch.ops.tiledsl.gemm_into``: writes C in place, increments its version, and has no gradient.

Importing this module defines the operators. A call of an operator takes torch several microseconds, so that the
functions here call the library's `gemm` themselves where nobody is to see an operator: no gradient is wanted, and
neither a tracer, a mode of torch nor a transformation of functions is active. Compiled code does so, too
(`_lower_for_inductor`).
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

from tiledsl.gemm import gemm as product
from tiledsl.gemm.operands import GEMM
from tiledsl.runtime.arrays import NUMPY_NAMES
from tiledsl.signatures.specialize import argument_error

__all__ = ["gemm", "gemm_into", "is_direct"]

FLOATS = ("bf16", "f16", "f32")
"""dtypes of A and B, and of C unless they are f32: what torch has gradients for."""

try:
    # Not an import statement: torch is no dependency, and a type checker need not have it.
    torch: Any = importlib.import_module("torch")
except ImportError as error:
    raise ImportError(f"tiledsl.torch needs PyTorch: {error}\n  fix: pip install torch") from error

_ANY_MATRIX = "Tensor A, Tensor B, Tensor? bias=None, *, float alpha=1.0"
_LIBRARY = torch.library.Library("tiledsl", "DEF")
# Strides decide which kernel is chosen: the compiler passes operands as they are, and copies none.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_LIBRARY.define(f"gemm({_ANY_MATRIX}, ScalarType? out_dtype=None, bool batch_invariant=False) -> Tensor", tags=_TAGS)
_LIBRARY.define(f"gemm_into(Tensor(a!) C, {_ANY_MATRIX}, float beta=0.0, bool batch_invariant=False) -> ()", tags=_TAGS)
_gemm, _gemm_into = torch.ops.tiledsl.gemm.default, torch.ops.tiledsl.gemm_into.default

_ORDINARY = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))
_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_modes, _transformed = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_traced = torch._C._get_tracing_state
_below_autograd = torch._C._AutoDispatchBelowAutograd


def gemm(
    A: Any, B: Any, bias: Any = None, *, alpha: float = 1.0, out_dtype: Any = None, batch_invariant: bool = False
) -> Any:
    """A new tensor: alpha A B + bias, by `tiledsl.gemm.gemm`, with a gradient for A, B and the bias.

    A: [M, K], B: [K, N], each with a batch in front or without, of bf16, f16 or f32 and any strides. bias: f32 [N].
    out_dtype: of the result, a dtype of torch; by default that of A. CPU tensors run on the emulator where there is no
    GPU. Gradients are products of the dtype of A and B, to which that of the result is rounded.

    Raises KernelArgumentError, DeviceError.
    """
    if not _compiling() and is_direct(A, B, bias):
        return product(A, B, None, alpha, 0.0, bias, out_dtype=out_dtype, batch_invariant=batch_invariant)
    return _gemm(A, B, bias, **_given(alpha, out_dtype, batch_invariant))


def gemm_into(
    C: Any, A: Any, B: Any, bias: Any = None, *, alpha: float = 1.0, beta: float = 0.0, batch_invariant: bool = False
) -> None:
    """C = alpha A B + beta C + bias, in place. There is no gradient: where gradients are on, no tensor may require one.

    The rest is as for `gemm`. Raises KernelArgumentError, DeviceError.
    """
    if not _compiling() and is_direct(A, B, bias) and type(C) in _ORDINARY:
        product(A, B, C, alpha, beta, bias, batch_invariant=batch_invariant)
        return
    _gemm_into(C, A, B, bias, alpha=alpha, beta=beta, batch_invariant=batch_invariant)


def _given(alpha: float, out_dtype: Any, batch_invariant: bool) -> dict[str, Any]:
    """The settings that are not the defaults: each costs torch a microsecond in a call of an operator."""
    settings: dict[str, Any] = {} if alpha == 1.0 else {"alpha": alpha}
    if out_dtype is not None:
        settings["out_dtype"] = out_dtype
    if batch_invariant:
        settings["batch_invariant"] = True
    return settings


def is_direct(A: Any, B: Any, bias: Any) -> bool:
    """Is a call of the library's `gemm` all that torch would do? Not for subclasses of tensors, tensors without data,
    gradients, modes (which see every operator), torch.func and torch.jit.trace."""
    return (
        type(A) in _ORDINARY
        and type(B) in _ORDINARY
        and type(bias) in _ORDINARY
        and not A.is_meta
        and not (_grad_enabled() and _requires_grad(A, B, bias))
        and not _modes()
        and not _transformed()
        and _traced() is None
    )


def _requires_grad(A: Any, B: Any, bias: Any) -> bool:
    return A.requires_grad or B.requires_grad or (bias is not None and bias.requires_grad)


# -- on a device ---------------------------------------------------------------------------------------------


def _run(
    A: Any, B: Any, bias: Any = None, *, alpha: float = 1.0, out_dtype: Any = None, batch_invariant: bool = False
) -> Any:
    return product(A, B, None, alpha, 0.0, bias, out_dtype=out_dtype, batch_invariant=batch_invariant)


def _run_into(
    C: Any, A: Any, B: Any, bias: Any = None, *, alpha: float = 1.0, beta: float = 0.0, batch_invariant: bool = False
) -> None:
    product(A, B, C, alpha, beta, bias, batch_invariant=batch_invariant)


# -- without data --------------------------------------------------------------------------------------------


def _fake(
    A: Any, B: Any, bias: Any = None, *, alpha: float = 1.0, out_dtype: Any = None, batch_invariant: bool = False
) -> Any:
    """An empty tensor like the result."""
    _lower_for_inductor()  # here, since Inductor runs this before it lowers a graph, and is loaded by then
    shape = _checked_shape(A, B, bias)
    made = A.new_empty(shape, dtype=out_dtype)
    _check_result(A, made)
    return made


def _fake_into(
    C: Any, A: Any, B: Any, bias: Any = None, *, alpha: float = 1.0, beta: float = 0.0, batch_invariant: bool = False
) -> None:
    shape = _checked_shape(A, B, bias)
    if len(C.shape) != len(shape) or any(c != n for c, n in zip(C.shape, shape, strict=True)):
        message = (
            f"C has the shape {tuple(C.shape)}; expected {tuple(shape)} for A {tuple(A.shape)}, B {tuple(B.shape)}"
        )
        raise argument_error(GEMM, message, "pass C of that shape", code="C803")
    _check_result(A, C)


def _checked_shape(A: Any, B: Any, bias: Any) -> list[Any]:
    """The shape of the result, whose extents may be symbols. What needs no memory is checked as `operands.described`
    does, so that the errors of a compiled function are found when it is compiled."""
    if not (A.dim() in (2, 3) and B.dim() in (2, 3)):
        message = f"A has the shape {tuple(A.shape)} and B {tuple(B.shape)}; expected two axes, or three with a batch"
        raise argument_error(GEMM, message, "pass [M, K] and [K, N], or [batch, M, K] and [batch, K, N]", code="C803")
    if A.shape[-1] != B.shape[-2]:
        message = f"K is {A.shape[-1]} in A, of shape {tuple(A.shape)}, but {B.shape[-2]} in B, of {tuple(B.shape)}"
        raise argument_error(GEMM, message, "pass [M, K] and [K, N]; a transposed view will do", code="C803")
    if A.dtype != B.dtype or _name(A.dtype) not in FLOATS:
        message = f"A is {_name(A.dtype)} and B {_name(B.dtype)}; expected one of {', '.join(FLOATS)} for both"
        raise argument_error(GEMM, message, "convert A and B", code="C802")
    n = B.shape[-1]
    if bias is not None and (bias.dtype != torch.float32 or bias.dim() != 1 or bias.shape[0] != n):
        message = f"bias is {bias.dtype} of shape {tuple(bias.shape)}; expected f32 of shape ({n},)"
        raise argument_error(GEMM, message, "convert it", code="C803")
    return [*torch.broadcast_shapes(A.shape[:-2], B.shape[:-2]), A.shape[-2], n]


def _check_result(A: Any, C: Any) -> None:
    allowed = ("f32",) if _name(A.dtype) == "f32" else FLOATS
    if _name(C.dtype) not in allowed:
        message = f"the result is {C.dtype}; expected one of {', '.join(allowed)} for A of {A.dtype}"
        raise argument_error(GEMM, message, "pass another out_dtype, or C of such a dtype", code="C802")


def _name(dtype: Any) -> str:
    text = str(dtype).removeprefix("torch.")
    return NUMPY_NAMES.get(text, text)


# -- gradients -----------------------------------------------------------------------------------------------


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, A: Any, B: Any, bias: Any, alpha: float, out_dtype: Any, batch_invariant: bool) -> Any:
        of_a, of_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(A if of_b else None, B if of_a else None)
        ctx.shapes, ctx.dtype, ctx.alpha, ctx.batch_invariant = (A.shape, B.shape), A.dtype, alpha, batch_invariant
        with _below_autograd():
            return _gemm(A, B, bias, **_given(alpha, out_dtype, batch_invariant))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        (A, B), (of_a, of_b, of_bias, *_) = ctx.saved_tensors, ctx.needs_input_grad
        rounded, a, b = grad.to(ctx.dtype), None, None
        if of_a:
            a = _summed(rounded, B.mT, ctx.shapes[0], _given(ctx.alpha, None, ctx.batch_invariant))
        if of_b:
            b = _summed(A.mT, rounded, ctx.shapes[1], _given(ctx.alpha, None, False))
        bias = grad.sum(tuple(range(grad.dim() - 1)), dtype=torch.float32) if of_bias else None
        return a, b, bias, None, None, None


def _summed(X: Any, Y: Any, shape: Any, settings: dict[str, Any]) -> Any:
    """X Y of the `shape` of an operand: where that has no batch, or one of 1, the sum over the batch, which is one
    product with a longer k."""
    batches = [x.shape[0] for x in (X, Y) if x.dim() == 3]
    batch = next((n for n in batches if n != 1), 1)
    if len(shape) == 3 and shape[0] == batch:
        return _gemm(X, Y, **settings).expand(shape)
    wide, high = (x.expand(batch, *x.shape[-2:]) for x in (X, Y))
    one = _gemm(wide.transpose(0, 1).flatten(1), high.flatten(0, 1), **settings)
    return one.reshape(shape)


def _with_gradient(
    A: Any, B: Any, bias: Any = None, *, alpha: float = 1.0, out_dtype: Any = None, batch_invariant: bool = False
) -> Any:
    if is_direct(A, B, bias):
        return product(A, B, None, alpha, 0.0, bias, out_dtype=out_dtype, batch_invariant=batch_invariant)
    return _Product.apply(A, B, bias, alpha, out_dtype, batch_invariant)


def _without_gradient(C: Any, A: Any, B: Any, bias: Any = None, **settings: Any) -> None:
    if _grad_enabled() and (C.requires_grad or _requires_grad(A, B, bias)):
        fix = "call it under torch.no_grad(), or tiledsl.torch.gemm, which has a gradient"
        raise argument_error(GEMM, "gemm_into has no gradient, and a tensor that it was given requires one", fix)
    with _below_autograd():
        _gemm_into(C, A, B, bias, **settings)


# -- code of torch.compile -----------------------------------------------------------------------------------


def _run_out(A: Any, B: Any, bias: Any = None, *, out: Any, alpha: float = 1.0, batch_invariant: bool = False) -> None:
    product(A, B, out, alpha, 0.0, bias, batch_invariant=batch_invariant)


_NAME = "run_out"
"""How generated code calls it. It stays: Inductor keeps such code on disk."""
setattr(torch.ops.tiledsl, _NAME, _run_out)


def _lower_for_inductor() -> None:
    """Make Inductor, once it is loaded, write calls of `_run_out` on memory that it plans, and none of the operator,
    which pass by torch's dispatcher. It has no public interface for this, so that a version may lack what is used here:
    then the operator is called."""
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None or _gemm in lowering.lowerings:
        return
    try:
        names = ("torch._inductor.ir", "torch._inductor.virtualized", "sympy")
        ir, graphs, sympy = (importlib.import_module(name) for name in names)
        by_dispatcher = lowering.fallback_handler(_gemm, add_to_fallback_set=False)

        def lower(A: Any, B: Any, bias: Any = None, **settings: Any) -> Any:
            if graphs.V.graph.cpp_wrapper:  # its code is C++
                return by_dispatcher(A, B, bias, **settings)
            made = graphs.V.current_node.meta["val"]
            inputs = [ir.ExternKernel.realize_input(x) for x in (A, B, bias) if x is not None]
            size, strides = ([*map(sympy.sympify, of)] for of in (made.shape, made.stride()))
            layout = ir.FixedLayout(made.device, made.dtype, size, strides)
            given = _given(settings["alpha"], None, settings["batch_invariant"])
            called = f"torch.ops.tiledsl.{_NAME}"
            return ir.TensorBox.create(ir.ExternKernelOut(layout, inputs, (), given, python_kernel_name=called))

        lowering.register_lowering(_gemm, type_promotion_kind=None)(lower)
    except (ImportError, AttributeError, TypeError) as error:
        message = f"torch {torch.__version__} compiles gemm to calls by its dispatcher, which take longer: {error}"
        warnings.warn(f"tiledsl.torch: {message}", stacklevel=2)


_LIBRARY.impl("gemm", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("gemm", _with_gradient, "Autograd")
_LIBRARY.impl("gemm_into", _run_into, "CompositeExplicitAutograd")
_LIBRARY.impl("gemm_into", _without_gradient, "Autograd")
torch.library.register_fake("tiledsl::gemm", _fake, lib=_LIBRARY)
torch.library.register_fake("tiledsl::gemm_into", _fake_into, lib=_LIBRARY)
