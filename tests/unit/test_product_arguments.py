"""Every keyword of every product, in every format: it changes the result as documented, or is refused as documented.

`CALLS` has calls of each product in each format, which give what a reference computes from all of their arguments. They
show that a keyword is not left out where the reference gives something else without it. For other keywords, `OTHERS`
names a test. `test_no_keyword_is_forgotten` compares both with the signatures.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import tiledsl.gemm
from tests.unit.emulated_gpu import EmulatedDriver, FakeTorch, aligned, install
from tiledsl import f32, i32, maximum, tile_function
from tiledsl.errors import DeviceError, KernelArgumentError
from tiledsl.gemm import call, gemm, grouped_call, grouped_gemm, int4_gemm, masked_gemm, pack_int4, warmup
from tiledsl.gemm.steps import Steps
from tiledsl.gemm.workspace import workspace_of

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
DTYPES: dict[str, Any] = {"bf16": BF16, "f16": np.float16, "f32": np.float32, "f64": np.float64, "i32": np.int32}
DTYPES |= {"e4m3": E4M3, "e5m2": E5M2, "i8": np.int8, "u8": np.uint8}
M, N, K, GROUPS = 5, 16, 256, 2
PRODUCTS = {
    name: function for name in tiledsl.gemm.__all__ if inspect.isfunction(function := getattr(tiledsl.gemm, name))
}


@tile_function
def clamped(x: Any, bias: Any, column: Any) -> Any:
    """Add a bias and the column, and leave nothing below -3. Integers become f32."""
    dtype: Any = f32 if x.dtype == i32 else x.dtype
    y = x.to(dtype) + column.to(dtype)
    return maximum(y if bias is None else y + bias.get(column).to(dtype), -3)


def numbers(name: str, *shape: int, seed: int = 0) -> Any:
    """Return integers from -2 to 2, of u8 from 0 to 4: few bits, so that all sums are exact."""
    return (np.random.default_rng([*shape, seed]).integers(-2, 3, shape) + 2 * (name == "u8")).astype(DTYPES[name])


def missing(array: Any) -> Any:
    """Return an array like this one that must not be read: of NaN, or the largest integers."""
    largest = np.nan if array.dtype.kind not in "iu" else np.iinfo(array.dtype).max
    return np.full_like(array, largest)


class Format(NamedTuple):
    """Dtypes of A and B, and what a call passes for them. default: of C if nothing is said. out: another one. scales:
    "blocks" or "vectors". converts: a bias needs an epilogue function (docs/gemm.md)."""

    a: str
    b: str
    default: str
    out: str
    precision: str | None = None
    scales: str = ""
    converts: bool = False

    @property
    def no_alpha(self) -> float:
        """Return a factor that rounds to 0 in f32, or 0 for products by residues, whose factors are f64."""
        return 0.0 if (self.precision or "").startswith("i8") else 1e-50


FORMATS = {
    "bf16": Format("bf16", "bf16", "bf16", "f32"),
    "f16": Format("f16", "f16", "f16", "bf16"),
    "f32": Format("f32", "f32", "f32", "f32"),
    "tf32": Format("f32", "f32", "f32", "bf16", "tf32"),
    "bf16x6": Format("f32", "f32", "f32", "f32", "bf16x6"),
    "f16x3": Format("f32", "f32", "f32", "f32", "f16x3"),
    "i8x8": Format("f32", "f32", "f32", "f32", "i8x8"),
    "i8x15": Format("f64", "f64", "f64", "f64", "i8x15", converts=True),
    "e4m3": Format("e4m3", "e5m2", "bf16", "f32"),
    "promoted": Format("e5m2", "e5m2", "bf16", "f32", "promoted"),
    "blocks": Format("e4m3", "e4m3", "bf16", "f16", scales="blocks"),
    "i8": Format("i8", "u8", "i32", "f32", converts=True),
    "vectors": Format("i8", "i8", "bf16", "f32", scales="vectors"),
}


class Call(NamedTuple):
    """A call of a product by keywords, and the result that the reference computes for these."""

    product: Callable[..., Any]
    given: dict[str, Any]
    reference: Callable[..., Any]
    dtype: Any = None


def applied(x: Any, bias: Any = None, epilogue: Any = None) -> Any:
    """Return the sums after `clamped`, or after the default, which adds the bias."""
    x = x if bias is None else x + bias
    return np.maximum(x + np.arange(x.shape[-1]), -3) if epilogue is clamped else x


def scaled_product(A: Any, B: Any, scale_a: Any = None, scale_b: Any = None) -> Any:
    """Return A B in f64, of blocks or of rows and columns that have scales."""
    a, b = A.astype(np.float64), B.astype(np.float64)
    if scale_a is not None:
        a = a * np.repeat(scale_a, -(-a.shape[-1] // scale_a.shape[-1]), axis=-1)[..., : a.shape[-1]]
    if scale_b is not None:
        rows, columns = (-(-b.shape[i] // scale_b.shape[i]) for i in (-2, -1))
        b = b * np.repeat(np.repeat(scale_b, rows, -2), columns, -1)[..., : b.shape[-2], : b.shape[-1]]
    return a @ b


def of_gemm(
    A: Any, B: Any, C: Any = None, alpha: float = 1.0, beta: float = 0.0, bias: Any = None, epilogue: Any = None,
    scale_a: Any = None, scale_b: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Return the reference of `gemm`."""
    x = alpha * scaled_product(A, B, scale_a, scale_b) if np.float32(alpha) else np.zeros((*A.shape[:-1], B.shape[-1]))
    return applied(x + beta * C.astype(np.float64) if beta else x, bias, epilogue)


def of_groups(
    A: Any, B: Any, bounds: Any, C: Any = None, alpha: float = 1.0, bias: Any = None, epilogue: Any = None,
    scale_a: Any = None, scale_b: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Return the reference of `grouped_gemm` and `masked_gemm`, where rows from the counts on stay as they are."""
    pieces: list[Any] = []
    for g, matrix in enumerate(B):
        rows = g if A.ndim == 3 else slice(bounds[g], bounds[g + 1])
        scales = (None, None) if scale_a is None else (scale_a[rows], scale_b[g])
        piece = of_gemm(A[rows], matrix, None, alpha, 0.0, None if bias is None else bias[g], epilogue, *scales)
        masked = A.ndim == 3 and C is not None
        pieces.append(np.where(np.arange(M)[:, None] < bounds[g], piece, C[g]) if masked else piece)
    return np.stack(pieces) if A.ndim == 3 else np.concatenate(pieces)


def of_int4(
    q: Any, scales: Any, X: Any, zeros: Any = None, group: int = 128, alpha: float = 1.0, bias: Any = None,
    epilogue: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Return the reference of `int4_gemm` with packed weights of `pack_int4`."""
    step, points = (np.repeat(x, group, 0) for x in (scales, np.full(scales.shape, 8) if zeros is None else zeros))
    return of_gemm(X, (q.astype(np.float64) - points) * step.astype(np.float64), None, alpha, 0.0, bias, epilogue)


def int4(q: Any, scales: Any, X: Any, zeros: Any = None, group: int = 128, **given: Any) -> Any:
    return int4_gemm(X, pack_int4(q, scales, zeros, group=group), **given)


def scales_of(kind: str, groups: tuple[int, ...] = (), rows: tuple[int, ...] = (M,)) -> dict[str, Any]:
    """Return scales that are powers of two, which differ from block to block."""
    if not kind:
        return {}
    a, b = ((*rows, 2), (*groups, 2, 1)) if kind == "blocks" else ((*rows, 1), (*groups, 1, N))
    draw = np.random.default_rng(5).choice
    return {f"scale_{name}": draw(np.array([0.5, 1, 2], np.float32), size) for name, size in (("a", a), ("b", b))}


def calls_of_gemm(of: Format) -> Iterator[Call]:
    """Yield calls with factors, C, and a bias; with an epilogue function; and with operands that alpha = 0 drops."""
    A, B, bias = numbers(of.a, M, K), numbers(of.b, K, N, seed=1), numbers("f32", N, seed=2)
    base = {"A": A, "B": B, **scales_of(of.scales)} | ({} if of.precision is None else {"precision": of.precision})
    C = numbers(of.default, M, N, seed=3)
    by_default = {} if of.converts else {"bias": bias, "epilogue": None}
    yield Call(gemm, {**base, "C": C, "alpha": 2.0, "beta": -1.0, **by_default}, of_gemm, C.dtype)
    yield Call(gemm, {**base, "bias": bias, "epilogue": clamped, "out_dtype": of.out}, of_gemm, DTYPES[of.out])
    nothing = {**base, "A": missing(A), "B": missing(B), "alpha": of.no_alpha, "C": missing(C), **by_default}
    nothing |= {name: missing(scale) for name, scale in scales_of(of.scales).items()}
    yield Call(gemm, nothing, of_gemm, C.dtype)


def calls_of_groups(product: Any, name: str, out: str, kind: str = "") -> Iterator[Call]:
    """Yield calls as `calls_of_gemm` does, of `grouped_gemm` or `masked_gemm`."""
    rows, of_sizes, sizes = ((2 * M,), "offsets", [0, 3, 2 * M])
    if product is masked_gemm:
        rows, of_sizes, sizes = ((GROUPS, M), "counts", [M, 3])
    A, B, bias = numbers(name, *rows, K), numbers(name, GROUPS, K, N, seed=1), numbers("f32", GROUPS, N, seed=2)
    base, C = {"A": A, "B": B, of_sizes: np.array(sizes), **scales_of(kind, (GROUPS,), rows)}, numbers(out, *rows, N)

    def reference(A: Any, B: Any, offsets: Any = None, counts: Any = None, **given: Any) -> Any:
        return of_groups(A, B, offsets if counts is None else counts, **given)

    yield Call(product, {**base, "C": C, "alpha": -2.0, "bias": bias, "epilogue": None}, reference, C.dtype)
    default = DTYPES["bf16" if name in ("e4m3", "e5m2") else name]
    every = {**base, "counts": np.array([M, M])} if product is masked_gemm else base
    yield Call(product, {**every, "bias": bias, "epilogue": clamped}, reference, default)
    nothing = {**base, "A": missing(A), "B": missing(B), "alpha": 0, "C": missing(C)}
    nothing |= {name: missing(scale) for name, scale in scales_of(kind, (GROUPS,), rows).items()}
    yield Call(product, {**nothing, "bias": bias}, reference, C.dtype)


def calls_of_int4(name: str, rows: int) -> Iterator[Call]:
    """Yield calls as `calls_of_gemm` does, of `int4_gemm` with packed weights of `pack_int4`."""
    draw, bias = np.random.default_rng(7).integers, numbers("f32", N, seed=2)
    base: dict[str, Any] = {
        "q": draw(0, 16, (K, N)),
        "scales": np.ones((4, N), np.float32),
        "X": numbers(name, rows, K),
        "group": 64,
    }
    points, C = draw(0, 16, (4, N)), np.zeros((rows, N), np.float32)
    base["scales"][::2] = 0.5
    yield Call(int4, {**base, "zeros": points, "alpha": 0.5, "C": C, "bias": bias, "epilogue": None}, of_int4, C.dtype)
    yield Call(int4, {**base, "C": C, "bias": bias, "epilogue": clamped}, of_int4, C.dtype)
    yield Call(int4, {**base, "X": missing(base["X"]), "alpha": 0.0, "bias": bias}, of_int4, base["X"].dtype)


CALLS: dict[str, Callable[[], Iterator[Call]]] = {
    **{f"gemm {name}": lambda of=of: calls_of_gemm(of) for name, of in FORMATS.items()},
    "grouped bf16": lambda: calls_of_groups(grouped_gemm, "bf16", "bf16"),
    "grouped e4m3": lambda: calls_of_groups(grouped_gemm, "e4m3", "f16"),
    "grouped blocks": lambda: calls_of_groups(grouped_gemm, "e5m2", "bf16", "blocks"),
    "masked f16": lambda: calls_of_groups(masked_gemm, "f16", "f16"),
    "masked blocks": lambda: calls_of_groups(masked_gemm, "e4m3", "bf16", "blocks"),
    "int4 bf16": lambda: calls_of_int4("bf16", M),
    "int4 f16, rounded": lambda: calls_of_int4("f16", 65),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_argument_counts(name: str) -> None:
    for product, given, reference, dtype in CALLS[name]():
        expected = reference(**given).astype(dtype).astype(np.float64)
        made = product(**given, device="emulator")
        assert "C" not in given or made is given["C"]
        assert made.dtype == dtype
        np.testing.assert_array_equal(made.astype(np.float64), expected)


def counted(reference: Callable[..., Any], given: dict[str, Any]) -> set[str]:
    """Return the keywords without which the reference gives something else, or nothing."""
    expected, found = reference(**given), set[str]()
    for name in given:
        try:
            same = np.array_equal(expected, reference(**{n: x for n, x in given.items() if n != name}))
        except (TypeError, AttributeError, ValueError):  # nothing to compute
            same = False
        found |= set() if same else {name}
    return found


# -- keywords that leave the result as it is ---------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Steps]:
    """Return the list that collects the launches of each call of `gemm`, none of which runs."""
    found: list[Steps] = []
    function = call.planned
    monkeypatch.setattr(call, "planned", lambda *given: (found.append(function(*given)), Steps((), 0, 0))[1])
    return found


def split_k(steps: Steps) -> bool:
    return any(step.consts.get("SPLIT") or step.consts.get("GATHER") for step in steps.launches)


@pytest.mark.parametrize("name", FORMATS)
def test_batch_invariant(name: str, launches: list[Steps]) -> None:
    """No launch splits k then, though this product would gain from it. Products by residues are exact in any order."""
    of, k = FORMATS[name], 8192
    A, B, scales = numbers(of.a, 1, k), numbers(of.b, N, k).T, dict[str, Any]()
    if of.scales:
        sizes = ((1, k // 128), (k // 128, 1)) if of.scales == "blocks" else ((1, 1), (1, N))
        scales = {f"scale_{operand}": np.ones(size, np.float32) for operand, size in zip("ab", sizes, strict=True)}
    for batch_invariant in (False, np.bool_(True)):
        gemm(A, B, precision=of.precision, batch_invariant=batch_invariant, device="emulator", **scales)
    assert [split_k(steps) for steps in launches] == [not name.startswith("i8x"), False]


BIG, LITTLE = 256.0, 0.5
PRECISE: dict[str, tuple[str, list[float], list[float]]] = {
    "tf32": ("f32", [1 + 2**-13, 0], [1, 1 + 2**-13]),
    "bf16x6": ("f32", [np.inf, 0], [np.inf, np.nan]),
    "f16x3": ("f32", [np.inf, 0], [np.inf, np.nan]),
    "i8x8": ("f32", [np.inf, 0], [np.inf, np.nan]),
    "promoted": ("e4m3", [BIG, LITTLE], [BIG * BIG, BIG * BIG + LITTLE]),
}
"""The dtype, the elements of A at 0 and 128 of k, and the sums without a precision and with it."""


@pytest.mark.parametrize("name", PRECISE)
def test_precision(name: str) -> None:
    """Each precision does what docs/gemm.md says: ignored bits, infinities that become NaN, sums of more bits."""
    dtype, elements, (without, given) = PRECISE[name]
    A, B = np.zeros((1, 256), DTYPES[dtype]), np.ones((256, 1), DTYPES[dtype])
    A[0, ::128] = elements
    if name == "promoted":
        B[0] = BIG
    if name == "tf32":
        without, given = given, without
    for precision, expected in ((None, without), (name, given)):
        C = gemm(A, B, precision=precision, out_dtype="f32", device="emulator")
        np.testing.assert_array_equal(C[0, 0], np.float32(expected))


@pytest.mark.parametrize("product", [gemm, grouped_gemm, masked_gemm, int4])
def test_device(product: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "gpu" is never the emulator, and no other name is one of them."""
    given = next(c.given for make in CALLS.values() for c in make() if c.product is product)
    with pytest.raises(DeviceError):
        product(**given, device="gpu")
    with pytest.raises(KernelArgumentError, match="device is 'cuda'"):
        product(**given, device="cuda")


def test_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of arrays on a GPU launch on the stream, and it is refused for host arrays."""
    gpu = EmulatedDriver()
    install(monkeypatch, gpu)
    A, B = (FakeTorch(aligned(numbers("bf16", *shape))) for shape in ((M, N), (N, N)))
    gemm(A, B, stream=np.int64(11))
    assert {stream for _, stream, _ in gpu.launched} == {11}
    with pytest.raises(KernelArgumentError, match="stream is given, and the arrays are in host memory"):
        gemm(A.array, B.array, stream=11, device="emulator")


def test_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are chosen by it; test_grouped.py shows that results are the same."""
    given, chosen = next(calls_of_groups(masked_gemm, "bf16", "bf16")).given, list[Any]()
    monkeypatch.setattr(
        grouped_call, "hopper_grouped", lambda *_, **consts: chosen.append((consts["BM"], consts["BN"]))
    )
    for expected in (1, np.float32(1), np.int64(4000)):
        masked_gemm(**given, expected=expected, device="emulator")
    assert chosen[0] == chosen[1] != chosen[2]


# -- warmup ------------------------------------------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the set that collects the builds that `warmup` asks for; nothing is compiled."""
    found: set[str] = set()

    def build_all(jobs: Any) -> None:
        found.update(f"{kernel.name} {spec} {arch}" for kernel, spec, arch in jobs)

    monkeypatch.setattr("tiledsl.gemm.warm_up.build_all", build_all)
    return found


def needed(steps: Steps, arch: str) -> set[str]:
    """Return the builds that these launches need."""
    found: set[str] = set()
    for step in steps.launches:
        addresses = tuple((number + 1) << 50 for number in range(8))
        spec, target = step.kernel.dispatcher.build_of(step.values(addresses, 0), arch)
        found.add(f"{step.kernel.name} {spec} {target}")
    return found


SIZE = (16, 128, 256)
WARM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "shapes": ({"shapes": [(np.int64(16), 128, 40960)]}, {"k": 40960}),
    "dtype": ({"dtype": "f16"}, {"a": "f16", "b": "f16"}),
    "dtype_b": ({"dtype": "e4m3", "dtype_b": "e5m2"}, {"a": "e4m3", "b": "e5m2"}),
    "out_dtype": ({"out_dtype": "f32"}, {"out_dtype": "f32"}),
    "precision": ({"dtype": "f32", "precision": "tf32"}, {"a": "f32", "b": "f32", "precision": "tf32"}),
    "scales": ({"dtype": "e4m3", "scales": True}, {"a": "e4m3", "b": "e4m3", "scales": True}),
    "layouts": ({"layouts": ["NT"]}, {"order": "NT"}),
    "beta": ({"beta": np.float32(0.5)}, {"beta": 0.5}),
    "bias": ({"bias": True}, {"bias": True}),
    "epilogue": ({"epilogue": clamped}, {"epilogue": clamped}),
    "batch_invariant": (
        {"shapes": [(16, 128, 40960)], "batch_invariant": True},
        {"k": 40960, "batch_invariant": True},
    ),
}
"""The arguments of `warmup`, and those of `product_of`, by keyword."""


def product_of(
    launches: list[Steps], k: int = SIZE[2], a: str = "bf16", b: str = "bf16", order: str = "NN", **given: Any
) -> Steps:
    """Return the launches of a call of `gemm` with arrays like those that `warmup` assumes."""
    m, n, _ = SIZE
    A, B = aligned(numbers(a, m, k)), aligned(numbers(b, k, n) if order[1] == "N" else numbers(b, n, k).T)
    if given.pop("bias", False):
        given["bias"] = aligned(numbers("f32", n))
    if given.pop("scales", False):
        given |= {
            "scale_a": aligned(numbers("f32", m, k // 128)),
            "scale_b": aligned(numbers("f32", k // 128, n // 128)),
        }
    if "beta" in given:
        given["C"] = aligned(numbers(a, m, n))
    gemm(A, B, device="emulator", **given)
    return launches[-1]


@pytest.mark.parametrize("name", WARM)
def test_warmup_builds_what_the_call_needs(name: str, built: set[str], launches: list[Steps]) -> None:
    """Without that keyword, `warmup` builds something else."""
    to_warmup, to_gemm = WARM[name]
    warmup(**{"shapes": [SIZE], "arch": "sm_90a", **to_warmup})
    assert built == needed(product_of(launches, **to_gemm), "sm_90a")
    expected = {*built}
    built.clear()
    warmup(
        **{"shapes": [SIZE], "arch": "sm_90a", **{keyword: x for keyword, x in to_warmup.items() if keyword != name}}
    )
    assert built != expected


def test_warmup_of_a_stream(built: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`warmup` without `arch` builds for the GPU, and allocates the workspace that calls on this stream need."""
    gpu = EmulatedDriver(capability=(8, 0))
    install(monkeypatch, gpu)
    warmup([(16, 128, 40960)], "f32", stream=np.int64(23))
    assert built and all(text.endswith(" sm_80") for text in built)
    assert workspace_of(0, 23).room and not workspace_of(0, 24).room


# -- all of them -------------------------------------------------------------------------------------------------

OTHERS: dict[str, dict[str, Callable[..., None]]] = {
    "gemm": {
        "out_dtype": test_every_argument_counts,
        "precision": test_precision,
        "batch_invariant": test_batch_invariant,
        "stream": test_stream,
        "device": test_device,
    },
    "grouped_gemm": {"C": test_every_argument_counts, "device": test_device},
    "masked_gemm": {"C": test_every_argument_counts, "device": test_device, "expected": test_expected},
    "int4_gemm": {"C": test_every_argument_counts, "W": test_every_argument_counts, "device": test_device},
    "pack_int4": {},
    "warmup": {
        **dict.fromkeys(WARM, test_warmup_builds_what_the_call_needs),
        "stream": test_warmup_of_a_stream,
        "arch": test_warmup_of_a_stream,
    },
    "release": {},
}
ALWAYS = {"alpha", "bias", "epilogue"}


def keywords(function: Callable[..., Any]) -> set[str]:
    return {*inspect.signature(function).parameters}


def test_no_keyword_is_forgotten() -> None:
    assert PRODUCTS.keys() == OTHERS.keys()
    shown = {name: set[str]() for name in PRODUCTS}
    for make in CALLS.values():
        of_format = set[str]()
        for product, given, reference, _ in make():
            of_format |= counted(reference, given)
            for other in ("int4_gemm", "pack_int4") if product is int4 else (product.__name__,):
                shown[other] |= of_format & keywords(PRODUCTS[other])
        assert of_format >= ALWAYS | ({"beta", "C"} if product is gemm else set())
    for name, function in PRODUCTS.items():
        assert shown[name] | OTHERS[name].keys() == keywords(function)


@pytest.mark.parametrize("file", ["torch.py", "distributed/operators.py"])
def test_products_of_torch_read_their_parameters(file: str) -> None:
    """These need torch; tests/gpu runs them."""
    tree = ast.parse((Path(tiledsl.__file__).parent / file).read_text())
    (listed,) = [
        ast.literal_eval(n.value)
        for n in tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
    ]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in listed]
    assert {function.name for function in functions} == {*listed}
    for function in functions:
        read = {node.id for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name)}
        every = [*function.args.args, *function.args.kwonlyargs]
        assert {argument.arg for argument in every} <= read
