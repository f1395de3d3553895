"""What the GPU tests of `tiledsl.torch` do: each function runs in a process of its own.

``python tests/gpu/torch_programs.py NAME`` runs one by hand; with ``cpu`` behind it on tensors of the CPU, which the
emulator multiplies where there is no GPU.
"""

from __future__ import annotations

import copy
import io
import sys
from pathlib import Path
from typing import Any

import torch

from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import gemm as product
from tiledsl.torch import gemm, gemm_into

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parent))
from programs import raises
from torch_linear import Linear, replace_linear

DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"
BACKENDS = ("inductor",) if DEVICE == "cuda" else ("eager", "aot_eager")
BF16, F32 = torch.bfloat16, torch.float32


def _integers(*shape: int, dtype: Any = BF16, grad: bool = False) -> Any:
    """Small ones, whose products are exact."""
    return torch.randint(-3, 4, shape, device=DEVICE).to(dtype).requires_grad_(grad)


def _exact(A: Any, B: Any, dtype: Any = BF16) -> Any:
    return (A.detach().double() @ B.detach().double()).to(dtype)


def as_torch_says() -> None:
    """torch's own checks of an operator: schema, mutation, fake tensors, gradient, dynamic shapes."""
    A, B, bias, C = _integers(40, 24), _integers(24, 32), _integers(32, dtype=F32), _integers(40, 32)
    for grad in (False, True):
        given = [x.detach().clone().requires_grad_(grad) for x in (A, B, bias)]
        torch.library.opcheck(torch.ops.tiledsl.gemm.default, given[:2])
        torch.library.opcheck(torch.ops.tiledsl.gemm.default, given, {"alpha": 0.5, "out_dtype": F32})
    torch.library.opcheck(torch.ops.tiledsl.gemm.default, (A.expand(3, 40, 24), B))
    torch.library.opcheck(torch.ops.tiledsl.gemm_into.default, (C, A, B, bias), {"alpha": 2.0, "beta": 1.0})


def results_and_versions() -> None:
    """The same by the functions, which may pass by torch's dispatcher, and by the operators."""
    A, B, bias = _integers(40, 24), _integers(24, 32), _integers(32, dtype=F32)
    exact = _exact(A, B, torch.float64)
    for op, into in ((gemm, gemm_into), (torch.ops.tiledsl.gemm, torch.ops.tiledsl.gemm_into)):
        assert torch.equal(op(A, B).double(), exact)
        assert torch.equal(op(A, B, bias, alpha=2.0, out_dtype=F32).double(), 2 * exact + bias)
        assert torch.equal(op(A, B.mT.contiguous().mT, batch_invariant=True), product(A, B, batch_invariant=True))
        C = torch.ones(40, 32, device=DEVICE, dtype=BF16)
        saved = (C * C.detach().clone().requires_grad_()).sum()
        before = C._version
        into(C, A, B, beta=1.0)
        assert C._version == before + 1 and torch.equal(C.double(), exact + 1)
        raises(RuntimeError, saved.backward, "modified by an inplace operation")
        with torch.inference_mode():
            made = op(A, B)
            into(made, A, B, alpha=2.0)
            assert torch.equal(made.double(), 2 * exact)
    assert gemm(A.to("meta"), B.to("meta"), out_dtype=F32).shape == (40, 32)


class _Seen(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def seen_by_modes_and_tracers() -> None:
    A, B = _integers(8, 16, dtype=F32), _integers(16, 8, dtype=F32)
    C = torch.empty(8, 8, device=DEVICE)
    with _Seen() as seen:
        gemm(A, B)
        gemm_into(C, A, B)
        torch.ops.tiledsl.gemm(A, B)
    assert seen.operators == ["tiledsl.gemm.default", "tiledsl.gemm_into.default", "tiledsl.gemm.default"]
    refused = torch.func.grad(lambda x: gemm(x, B).square().sum())
    raises(RuntimeError, lambda: refused(A), "functorch")  # as any operator that is not torch's own
    traced = torch.jit.trace(lambda x: gemm(x, B), A, check_trace=False)
    assert torch.equal(traced(A + 1), gemm(A + 1, B))


def gradients() -> None:
    """Of each form of batch, of views, of a result of another dtype; and gradients of gradients."""
    m, n, k = 40, 32, 24
    forms = [((m, k), (k, n)), ((3, m, k), (k, n)), ((1, m, k), (3, k, n)), ((m, k), (3, k, n))]
    forms += [((3, m, k), (3, k, n)), ((3, m, k), (1, k, n)), ((1, m, k), (k, n)), ((m, k), (1, k, n))]
    for a, b in forms:
        given = [_integers(*a, grad=True), _integers(*b, grad=True), _integers(n, dtype=F32, grad=True)]
        exact = [x.detach().double().requires_grad_() for x in given]
        found = gemm(given[0], given[1], given[2], alpha=0.5, out_dtype=F32)
        expected = 0.5 * (exact[0] @ exact[1]) + exact[2]
        assert torch.equal(found.double(), expected), (a, b)
        grad = torch.randint(-2, 3, found.shape, device=DEVICE).float()
        found.backward(grad)
        expected.backward(grad.double())
        for x, y in zip(given, exact, strict=True):
            assert x.grad.dtype == x.dtype and torch.equal(x.grad, y.grad.to(x.dtype)), (a, b)
    A, B = _integers(k, m, grad=True), _integers(n, k, grad=True)
    gemm(A.mT, B.mT).sum().backward()  # of which the gradient is one element, repeated
    assert torch.equal(A.grad, B.detach().double().sum(0)[:, None].expand(k, m).to(BF16))
    A, B = _integers(8, 16, dtype=F32, grad=True), _integers(16, 8, dtype=F32, grad=True)
    twice: list[Any] = []
    for multiply in (gemm, torch.matmul):
        (first,) = torch.autograd.grad(multiply(A, B).square().sum(), A, create_graph=True)
        twice += torch.autograd.grad(first.sum(), B)
    assert torch.allclose(*twice)


def compiled() -> None:
    """In one graph: forwards, and backwards; of one shape, and of any."""
    for backend in BACKENDS:
        for dynamic in (False, True):
            torch._dynamo.reset()
            layer = torch.compile(
                lambda x, w, b: gemm(x, w.mT, b).relu(), fullgraph=True, backend=backend, dynamic=dynamic
            )
            for m in (40, 56, 40):
                x, w = (_integers(rows, 24, grad=True) for rows in (m, 32))
                b = _integers(32, dtype=F32, grad=True)
                y = layer(x, w, b)
                y.sum().backward()
                with torch.no_grad():
                    assert torch.equal(layer(x, w, b), y)
                with torch.inference_mode():
                    assert torch.equal(layer(x, w, b), y)
                assert torch.equal(y.double(), (_exact(x, w.mT, torch.float64) + b).relu())
                used = (y > 0).double()
                assert torch.equal(x.grad, _exact(used, w)) and torch.equal(w.grad, _exact(used.mT, x))
                assert torch.equal(b.grad, used.sum(0).float())

            def added(C: Any, x: Any, w: Any) -> Any:
                gemm_into(C, x, w, beta=1.0)
                return C + 1

            A, B, C = _integers(40, 24), _integers(24, 32), torch.zeros(40, 32, device=DEVICE, dtype=BF16)
            before = C._version
            found = torch.compile(added, fullgraph=True, backend=backend, dynamic=dynamic)(C, A, B)
            assert C._version > before and torch.equal(C, _exact(A, B)) and torch.equal(found, C + 1)


def no_copies_of_operands() -> None:
    """The compiler passes a transposed view, and rows with gaps between them, as they are, and calls the library."""
    x, w = _integers(40, 64)[:, :24], _integers(32, 24)
    strides: list[Any] = []

    def noted(graph: Any, inputs: Any) -> Any:
        strides.extend(node.args for node in graph.graph.nodes if "tiledsl" in str(node.target))
        return graph.forward

    found = torch.compile(lambda x, w: gemm(x, w.mT), fullgraph=True, backend=noted)(x, w)
    assert torch.equal(found, _exact(x, w.mT)) and len(strides) == 1
    if DEVICE == "cuda":
        from torch._inductor.utils import run_and_get_code

        _, (code,) = run_and_get_code(torch.compile(lambda x, w: gemm(x, w.mT), fullgraph=True), x, w)
        assert "torch.ops.tiledsl.run_out(" in code and "@triton" not in code, code


def in_graphs() -> None:
    """A graph that is captured by hand, and those of torch.compile: of one launch and of several, with workspaces."""
    assert DEVICE == "cuda", "graphs need a GPU"
    for m, n, k in ((300, 264, 72), (133, 217, 4043), (270, 70, 2048)):
        A, B, bias = _integers(m, k), _integers(k, n), _integers(n, dtype=F32)
        gemm_into(gemm(A, B, bias), A, B, bias, beta=1.0)  # loads both
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            C = torch.ops.tiledsl.gemm(A, B, bias)
            gemm_into(C, A, B, bias, beta=1.0)
        A.copy_(_integers(m, k))
        graph.replay()
        first = (_exact(A, B, torch.float64) + bias).to(BF16)
        assert torch.equal(C, (_exact(A, B, torch.float64) + bias + first.double()).to(BF16)), (m, n, k)

        torch._dynamo.reset()
        layer = torch.compile(lambda x, w, b: gemm(x, w, b) + 1, fullgraph=True, mode="reduce-overhead")
        for grad in (False, True):
            given = [x.detach().clone().requires_grad_(grad) for x in (A, B, bias)]
            for _ in range(5):
                torch.compiler.cudagraph_mark_step_begin()
                given[0].data.copy_(_integers(m, k))
                y = layer(*given)
                expected = ((_exact(given[0], B, torch.float64) + bias).to(BF16) + 1).to(BF16)
                assert torch.equal(y, expected), (m, n, k)
                if grad:
                    for x in given:  # gradients are memory of the graph, too: the next run overwrites them
                        x.grad = None
                    y.sum().backward()
                    assert torch.equal(given[0].grad, _exact(torch.ones(m, n, device=DEVICE), B.mT))


def a_linear_layer() -> None:
    """The example: a network with our layers in place of torch's gives the same, also compiled, and is trained."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 16)
    theirs = torch.nn.Sequential(*layers).to(DEVICE, BF16)
    ours = replace_linear(copy.deepcopy(theirs))
    assert sum(isinstance(layer, Linear) for layer in ours) == 2
    x = torch.randn(4, 33, 64, device=DEVICE, dtype=BF16)
    gradients: list[list[Any]] = []
    for model in (theirs, ours, torch.compile(ours, fullgraph=True, backend=BACKENDS[-1])):
        ours.zero_grad()
        y = model(x)
        assert (y - theirs(x)).abs().max() < 0.02
        y.float().square().mean().backward()
        gradients.append([p.grad.float() for p in (theirs if model is theirs else ours).parameters()])
    for found in gradients[1:]:
        for g, expected in zip(found, gradients[0], strict=True):
            assert (g - expected).abs().max() <= 0.03 * expected.abs().max() + 1e-4


def exported_by_torch() -> None:
    """torch.export keeps the operator, saves it, and loads it again; here with any number of rows."""
    layer = Linear(_integers(32, 24), _integers(32, dtype=F32))
    x = _integers(3, 5, 24)
    made = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    assert any("tiledsl.gemm" in str(node.target) for node in made.graph.nodes)
    file = io.BytesIO()
    torch.export.save(made, file)
    file.seek(0)
    y = _integers(7, 5, 24)
    assert torch.equal(torch.export.load(file).module()(y), layer(y))


def refused() -> None:
    A, B, bias, C = _integers(40, 24), _integers(24, 32), _integers(32, dtype=F32), _integers(40, 32)
    wanting = _integers(40, 24, grad=True)
    cases: list[tuple[Any, str]] = [
        (lambda: gemm_into(C, wanting, B), "gemm_into has no gradient, and a tensor that it was given requires one"),
        (lambda: gemm_into(C.detach().requires_grad_(), A, B), "requires a gradient"),
        (lambda: torch.ops.tiledsl.gemm_into(A, A, B[:, :24]), "C is written, and shares memory with A"),
    ]
    given: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((A, B.mT), {}, "K is 24 in A, of shape (40, 24), but 32 in B"),
        ((A, B.half()), {}, "B"),
        ((A.double(), B.double()), {}, "f64"),
        ((A[0], B), {}, "expected two axes, or three with a batch"),
        ((A, B, bias.bfloat16()), {}, "expected f32 of shape (32,)"),
        ((A.float(), B.float()), {"out_dtype": BF16}, "f32"),
    ]
    for args, settings, text in given:
        cases.append((lambda args=args, settings=settings: gemm(*args, **settings), text))
        fake = [x.to("meta") for x in args]
        cases.append((lambda args=fake, settings=settings: gemm(*args, **settings), text))
    for call, text in cases:
        raises(KernelArgumentError, call, text, "fix: ")
    torch._dynamo.reset()
    compiled = torch.compile(lambda: gemm(A, B.mT), fullgraph=True, backend="eager")
    raises(Exception, compiled, "K is 24 in A")


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
    print("done")
