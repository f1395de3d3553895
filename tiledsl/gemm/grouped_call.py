"""`grouped_gemm` and `masked_gemm`: products of groups of rows whose sizes the device alone knows.

Sizes are not read back, so tiles are chosen by what the host knows: how many rows there are in all, or are expected.
The model takes sizes to be as uneven as those of a geometric distribution, and adds up what the busiest SM loads and
stores.
"""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import Any, NamedTuple

from tiledsl.errors import KernelArgumentError, short_traceback
from tiledsl.gemm.arguments import check_given, described_bias, epilogue_of, factor, mean
from tiledsl.gemm.choice import BK, MACS, SCALING
from tiledsl.gemm.grouped import TALL, hopper_grouped
from tiledsl.gemm.hopper_tiles import staged_width
from tiledsl.gemm.operands import described_scales, new_array
from tiledsl.gemm.pad import pad, padded, widest
from tiledsl.gemm.promoted import ROOM_OF_SCALES
from tiledsl.ir.types import BF16, DTYPES, F16, DType
from tiledsl.lang import cdiv
from tiledsl.runtime.arrays import describe
from tiledsl.runtime.dispatch import place_of
from tiledsl.signatures.specialize import ArrayInfo, Called, argument_error

__all__ = ["aligned_copy", "choose_grouped", "grouped_gemm", "masked_gemm"]

STEP = 128
"""Bytes of k of a step."""
SIXTEEN, EIGHT = frozenset((BF16, F16)), frozenset((DTYPES["e4m3"], DTYPES["e5m2"]))
"""What is multiplied."""
PROCESSORS = 132
ALIGNED = 16
"""TMA needs an address, and strides other than 1, that are positive multiples of this many bytes."""
ROOM = (32, 128, 256, 512, 1024, 4096)
"""Values of GROUPS: a kernel is compiled for each by itself."""
SHARED_BYTES = 227 << 10
OTHER_BYTES = 1024
"""Of shared memory: mbarriers, the tables of `read_groups` beside those for each group, and what aligns tiles."""
EARLY = 50.0
"""Microseconds; products that are shorter gain from an early launch."""
MASKED = Called("masked_gemm")
"""The function that errors name."""


@short_traceback
def grouped_gemm(
    A: Any,
    B: Any,
    offsets: Any,
    C: Any = None,
    alpha: float = 1.0,
    bias: Any = None,
    epilogue: Any = None,
    device: str | None = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
) -> Any:
    """C[r] = epilogue(alpha A[r] B[g]) for each row r of each group g; returns C.

    A: [rows, K] of bf16 or f16, or of e4m3 or e5m2. offsets: [G + 1] of int32 or int64; group g has the rows offsets[g]
    to offsets[g + 1]. B: [G, K, N] of the dtype of A; of 8-bit floats of either. C: [rows, N] of the dtype of A, of
    8-bit floats bf16 or f16; a new array, of the former, if it is None. bias: [G, N] of f32, added to each row of its
    group. epilogue: as of `gemm`; it has to add the bias itself. alpha 0: A and B are not read. Rows outside of all
    groups are not written. Strides are any, those of C positive; operands that TMA, or wgmma, cannot read are copied
    first.

    scale_a, scale_b: for 8-bit floats, f32 factors of blocks, as of `gemm`: of each row of A and 128 of k,
    [rows, K / 128], and of each 128 of k and 128 columns of B, [G, K / 128, N / 128], rounded up. Of any strides.

    The offsets may be in device memory and are never copied to the host. They do not decrease, and stay from 0 to the
    number of rows: the emulator reports others; on a GPU results are then undefined, and nothing outside is accessed.
    """
    call = _Call("grouped_gemm", False, device, None, (scale_a, scale_b))
    return _call(call, A, B, offsets, C, alpha, bias, epilogue)


@short_traceback
def masked_gemm(
    A: Any,
    B: Any,
    counts: Any,
    C: Any = None,
    alpha: float = 1.0,
    bias: Any = None,
    epilogue: Any = None,
    device: str | None = None,
    expected: float | None = None,
    *,
    scale_a: Any = None,
    scale_b: Any = None,
) -> Any:
    """C[g, r] = epilogue(alpha A[g, r] B[g]) for the rows r below counts[g] of each group g; returns C.

    A: [G, max_m, K], C: [G, max_m, N], counts: [G] of int32 or int64, scale_a: [G, max_m, K / 128], all else as for
    `grouped_gemm`. Rows from
    counts[g] on are not written, and what A has there does not matter. expected: how many rows a group has on average,
    by which tiles are chosen, max_m / 2 if it is None; results do not depend on it.
    """
    rows = None if expected is None else mean(MASKED, "expected", expected)
    call = _Call(MASKED.name, True, device, rows, (scale_a, scale_b))
    return _call(call, A, B, counts, C, alpha, bias, epilogue)


class _Call(NamedTuple):
    """The function that errors name, whether its products are masked, and what it was asked for."""

    name: str
    masked: bool
    device: str | None
    expected: float | None
    scales: tuple[Any, Any]

    @property
    def bounds(self) -> str:
        """Return the name of the argument that says how many rows groups have."""
        return "counts" if self.masked else "offsets"


class _Known(NamedTuple):
    """What a call is once it was checked. out: the dtype of C. unaligned: which of A and B TMA, or wgmma, cannot read,
    and along which axis the rows of its copy run, of elements of so many bytes."""

    consts: dict[str, Any]
    out: DType
    unaligned: tuple[tuple[int, int], ...]
    size: int


_KNOWN: dict[Any, _Known] = {}
LIMIT = 4096
"""Most calls that are kept, so that shapes that keep changing do not fill the memory."""


def _call(call: _Call, A: Any, B: Any, bounds: Any, C: Any, alpha: float, bias: Any, epilogue: Any) -> Any:
    """A call like an earlier one on torch tensors only looks up the consts, by all that the checks depend on."""
    alpha, ending = factor(call, "alpha", alpha), epilogue_of(call, epilogue)
    try:
        given = (A, B, bounds, C, bias, *call.scales)
        facts = [
            None if x is None else (x.dtype, x.shape, x.stride(), x.data_ptr() & 15, x.get_device()) for x in given
        ]
        key = (*facts, call.masked, call.device, call.expected)
        known = _KNOWN.get(key)
    except Exception:  # not of torch, or wrong: the checks say what
        key = known = None
    if known is not None:
        result = new_array(call, A, (*A.shape[:-1], B.shape[2]), known.out) if C is None else C
    else:
        result, known = _checked(call, A, B, bounds, C, bias)
        if known is None:
            return result
        if key is not None:
            if len(_KNOWN) >= LIMIT:
                _KNOWN.clear()
            _KNOWN[key] = known
    if alpha == 0 and B.shape[1]:  # nothing of them is read, nor of their scales
        nothing = call._replace(scales=(None, None))
        return _call(nothing, A[..., :0], B[:, :0], bounds, result, alpha, bias, epilogue)
    arrays = [A, B, result] if call.masked else [A[None], B, result[None]]
    if B.shape[1] == 0:  # nothing is contiguous along it
        arrays[:2] = [new_array(call, X, X.shape, BF16) for X in arrays[:2]]
    for i, axis in known.unaligned:
        arrays[i] = aligned_copy(call, arrays[i], axis, call.device, known.size)
    of_a, of_b = call.scales if known.consts["SCALED"] else (None, None)
    if of_a is not None and not call.masked:
        of_a = of_a[None]
    finish = {} if ending is None else {"EPILOGUE": ending}
    try:
        hopper_grouped(*arrays, bounds, alpha, bias, of_a, of_b, device=call.device, **finish, **known.consts)
    except KernelArgumentError:
        _check_memory(call, A, B, bounds, result, bias)
        raise
    return result


def _checked(call: _Call, A: Any, B: Any, bounds: Any, C: Any, bias: Any) -> tuple[Any, _Known | None]:
    """C, and how to compute it; None if there is nothing to compute. Raises KernelArgumentError."""
    a, b = describe(call, "A", A), describe(call, "B", B)
    _check_shapes(call, a, b, describe(call, call.bounds, bounds))
    scaled = any(x is not None for x in call.scales)
    if scaled and a.dtype not in EIGHT:
        message = f"scale_a and scale_b are of 8-bit floats, and A and B are {a.dtype}"
        raise argument_error(
            call, message, "leave them out: alpha, or an epilogue function, scales any result", code="C802"
        )
    if scaled:
        described_scales(call, *call.scales, a, b)
    groups, k, n = b.shape
    if bias is not None:
        described_bias(call, bias, (groups, n))
    rows, shape = a.shape[-2], (*a.shape[:-1], n)
    outs = (BF16, F16) if a.dtype in EIGHT else (a.dtype,)
    result = new_array(call, A, shape, outs[0]) if C is None else C
    c = describe(call, "C", result)
    if c.shape != shape or c.dtype not in outs:
        message = f"C is {c.dtype} of shape {c.shape}; expected {' or '.join(map(str, outs))} of shape {shape}"
        raise argument_error(call, message, "pass C so, or leave it out", code="C803")
    emulated = place_of(call, call.device, "A", a.device) == "emulator"
    if 0 in (groups, rows, n):
        return result, None
    expected = rows / groups
    if call.masked:
        expected = rows / 2 if call.expected is None else call.expected
    by_columns, size = a.unit_axis() == len(a.shape) - 2, a.dtype.bytes if k else BF16.bytes
    # Groups begin anywhere in a column, and TMA at multiples of 16 bytes; wgmma reads 8-bit floats along k only.
    within = by_columns and (not call.masked or size == 1)
    consts = choose_grouped(groups, expected, n, k, within or not by_columns, size, scaled and k > 0)
    if cdiv(rows, consts["BM"]) * cdiv(n, consts["BN"]) * groups >= 1 << 31:
        message = f"{groups} groups of up to {rows} rows and {n} columns have more than 2^31 tiles"
        raise argument_error(call, message, "split the groups over several calls", code="C803")
    of_b = -2 if size == 1 and b.unit_axis() != 1 else _unaligned(b)
    unaligned = tuple((i, axis) for i, axis in enumerate((-1 if within else _unaligned(a), of_b)) if axis)
    return result, _Known({**consts, "MASKED": call.masked, "CHECK": emulated}, c.dtype, unaligned, size)


# -- the choice ------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """Rows and columns of a tile. exchanged: for few rows of a group. Of these tiles, and of those of 64 rows, two
    instances take turns, so that one stores while the other multiplies."""

    rows: int
    columns: int
    exchanged: bool

    @property
    def loaded(self) -> int:
        """Bytes of a step."""
        return (self.rows + self.columns) * STEP

    @property
    def in_halves(self) -> bool:
        """With scales: its sums and products do not fit into the registers together."""
        return self.rows * self.columns == 128 * 256

    @property
    def instances(self) -> int:
        return 2 if self.exchanged or self.rows == 64 else 1

    def consts(self, groups: int, along_k: bool = True, size: int = 2, scaled: bool = False) -> dict[str, Any]:
        """The consts of `hopper_grouped`, with as many stages as there is room for, up to 16. along_k: A is contiguous
        along k, so that no more than a tile's rows are staged. size: bytes of an element of A and B."""
        room = next(most for most in ROOM if groups <= most)
        stored = 2 * (gcd(self.rows, TALL) * self.columns if self.exchanged else self.rows * 64)
        beside = 8 * room + OTHER_BYTES + (ROOM_OF_SCALES if scaled else 0)
        stage = (staged_width(self.rows, along_k) + self.columns) * STEP
        return {
            "BM": self.rows,
            "BN": self.columns,
            "BK": STEP // size,
            "EXCHANGED": self.exchanged,
            "SCALED": scaled,
            "HALVES": scaled and self.in_halves,
            "INSTANCES": self.instances,
            "STAGES": min((SHARED_BYTES - 2 * self.instances * stored - beside) // stage, 16),
            "GROUPS": room,
        }


TILES = (
    Tile(16, 64, True),
    Tile(64, 128, True),
    Tile(128, 128, True),
    Tile(128, 192, False),
    Tile(128, 256, False),
)
SCALED_TILES = (Tile(64, 64, False), Tile(64, 128, False), Tile(128, 128, False), Tile(128, 256, False))
"""Each row of A has scales of its own, so operands are not exchanged; and registers hold sums and products."""

LOADED = 92e3
"""Bytes that an SM loads from L2 in a microsecond while all do. Multiplying them takes no longer with any tile."""
READ = 4.35e6
"""Bytes that all SMs read from memory in a microsecond."""
STARTED = 0.3
"""Microseconds between two tiles, in which nothing is multiplied."""
STORED = 2.8
"""Microseconds in which a tile of 128 x 256 is stored."""
UNEVEN = 1.3
"""How many tiles more than the average the busiest SM has, with what starting takes. These numbers were fitted to times
of all tiles for 25 problems: the tile that they choose took 1.1% longer than the best one on average, 7% at most."""


@cache
def choose_grouped(
    groups: int, mean: float, n: int, k: int, along_k: bool = True, size: int = 2, scaled: bool = False
) -> dict[str, Any]:
    """The consts of `hopper_grouped` for groups of `mean` rows on average and matrices of k x n. along_k: A is
    contiguous along k. size: bytes of an element of A and B."""
    k = cdiv(k * size, 2)
    tile = min(SCALED_TILES if scaled else TILES, key=lambda t: microseconds(t, groups, mean, n, k, scaled))
    early = bool(microseconds(tile, groups, mean, n, k, scaled) < EARLY)
    return {**tile.consts(groups, along_k, size, scaled), "EARLY": early}


def microseconds(tile: Tile, groups: int, mean: float, n: int, k: int, scaled: bool = False) -> float:
    """What a product takes, about: the SMs' part and the memory's, of which the longer one hides most of the other.
    k: as many 16-bit elements as it has bytes. scaled: by blocks, which takes longer than to load the tile."""
    some = mean / (1 + mean)  # the share of groups that have rows
    tiles = groups * some / (1 - some**tile.rows) * cdiv(n, tile.columns)
    exposed = 0.0 if tile.instances == 2 else STORED * tile.rows * tile.columns / (128 * 256)
    step = tile.loaded / LOADED
    if scaled:
        step = max(step, 1e-3 * tile.rows * tile.columns * BK / MACS * SCALING[tile.in_halves])
    busiest = (tiles / PROCESSORS + UNEVEN) * (cdiv(2 * k, STEP) * step + STARTED + exposed)
    memory = 2 * (groups * some * n * k + groups * mean * (k + n)) / READ
    return float(busiest**3 + memory**3) ** (1 / 3)


# -- arrays ----------------------------------------------------------------------------------------


def _check_shapes(call: Any, a: ArrayInfo, b: ArrayInfo, limits: ArrayInfo) -> None:
    first = "[G, max_m, K]" if call.masked else "[rows, K]"
    if len(a.shape) != 2 + call.masked or len(b.shape) != 3:
        message = f"A has the shape {a.shape} and B {b.shape}; expected {first} and [G, K, N]"
        raise argument_error(call, message, "pass them so; transposed views will do", code="C803")
    if a.shape[-1] != b.shape[1]:
        message = f"K is {a.shape[-1]} in A, of shape {a.shape}, but {b.shape[1]} in B, of shape {b.shape}"
        raise argument_error(
            call, message, f"pass A as {first} and B as [G, K, N]; a transposed view will do", code="C803"
        )
    groups = b.shape[0]
    if call.masked and a.shape[0] != groups:
        raise argument_error(call, f"A has {a.shape[0]} groups, but B {groups}", "pass as many of both", code="C803")
    if groups > ROOM[-1]:
        message = f"there are {groups} groups; a call takes {ROOM[-1]} at most"
        raise argument_error(call, message, "split them over several calls", code="C803")
    if not {a.dtype, b.dtype} <= EIGHT and (a.dtype not in SIXTEEN or a.dtype != b.dtype):
        message = f"A is {a.dtype} and B {b.dtype}; expected bf16 or f16, of both, or 8-bit floats, e4m3 or e5m2"
        raise argument_error(call, message, "convert them", code="C802")
    name, count = call.bounds, groups + (not call.masked)
    if limits.shape != (count,) or limits.dtype.name not in ("i32", "i64"):
        message = f"{name} are {limits.dtype} of shape {limits.shape}; expected i32 or i64 of shape ({count},)"
        fix = "one for each group" if call.masked else "where each group begins, and where the last one ends"
        raise argument_error(call, message, fix, code="C803")


def _check_memory(call: _Call, A: Any, B: Any, bounds: Any, C: Any, bias: Any) -> None:
    """Raise KernelArgumentError, which names `call`, for what its kernel refused: where arrays are in memory."""
    of_a, of_b = call.scales
    given = {"A": A, "B": B, call.bounds: bounds, "C": C, "bias": bias, "scale_a": of_a, "scale_b": of_b}
    check_given(call, given)


def _unaligned(info: ArrayInfo) -> int:
    """0 if TMA can read it; else the axis along which the rows of an aligned copy run, -1 or -2."""
    axis = info.unit_axis() - len(info.shape)
    if axis in (-1, -2) and info.alignment(axis + len(info.shape)) == ALIGNED:
        return 0
    return -2 if axis == -2 else -1


def aligned_copy(call: Any, X: Any, axis: int, device: str | None, size: int = 2) -> Any:
    """A copy of an operand with three axes, whose rows run along `axis` and are aligned. size: bytes of an element."""
    if axis == -2:
        return aligned_copy(call, X.swapaxes(1, 2), -1, device, size).swapaxes(1, 2)
    copy = new_array(call, X, (*X.shape[:2], padded(X.shape[2], size)))
    pad(X, copy, device=device, WIDE=widest(size))
    return copy[:, :, : X.shape[2]]
