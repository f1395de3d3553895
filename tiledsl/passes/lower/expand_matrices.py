"""Expand: fragments that warps hold together, and the products of them.

Of such a fragment a thread has `FragmentType.registers`: u32 words of narrow elements, one register of a wide one.
"""

from __future__ import annotations

from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import arith, matrix, mem, ptx
from tiledsl.ir.types import DTYPES, U32
from tiledsl.passes.lower.expander import Expander, Rule
from tiledsl.passes.lower.within import vector


def _pointer(x: Expander, op: matrix.LdMatrix | matrix.StMatrix) -> Value:
    """Of the row of this lane, if it is one of those that have one."""
    lanes = matrix.MATRIX_ROWS * op.num
    return x.address(op, op.memory, op.indices, vector(op.memory_type, op.vec), lanes=lanes)


def _ldmatrix(x: Expander, op: matrix.LdMatrix) -> None:
    loaded = x.b.add(mem.LdMatrix(_pointer(x, op), num=op.num, trans=op.trans))
    x.give_each(op.results, loaded.results)


def _stmatrix(x: Expander, op: matrix.StMatrix) -> None:
    x.b.add(mem.StMatrix(_pointer(x, op), *x.all(op.words), num=op.num, trans=op.trans))


def _from_words(x: Expander, op: matrix.FromWords) -> None:
    words, dtype = x.all(op.operands), op.type.dtype
    if op.type.per_register == 1 and dtype != U32:
        words = [x.b.value(arith.Bitcast(word, to=dtype)) for word in words]
    x.give(op.result, words)


def _to_words(x: Expander, op: matrix.ToWords) -> None:
    registers = x.mapping[op.fragment]
    x.give_each(op.results, [x.word(r) for r in registers])


def _slice(x: Expander, op: matrix.Slice) -> None:
    registers, shared = x.mapping[op.fragment], op.fragment.fragment.per_register
    x.give(op.result, [registers[element // shared] for element in op.kept[::shared]])


def _mma(x: Expander, op: matrix.Mma) -> None:
    """One `ptx.mma_sync` for each part of the accumulator and each step of k.

    Steps of k ascend, as the meaning of the product asks. In a step rows go one after the other and columns back and
    forth, so that neighbours share an operand.
    """
    row = op.row
    (rows, steps), (_, columns) = _tiles(op.a), _tiles(op.b)
    a, b, acc = _parts(x, op.a), _parts(x, op.b), _parts(x, op.acc)
    shape, dtypes = str(row.shape), [DTYPES[name] for name in (row.a, row.b, row.acc)]
    for k in range(steps):
        for i in range(rows):
            for j in range(columns) if i % 2 == 0 else reversed(range(columns)):
                part = i * columns + j
                operands = (*a[i * steps + k], *b[k * columns + j], *acc[part])
                mma = ptx.MmaSync(*operands, shape=shape, a=dtypes[0], b=dtypes[1], acc=dtypes[2])
                acc[part] = x.b.add(mma).results
    x.give(op.result, [register for part in acc for register in part])


def _parts(x: Expander, value: Value) -> list[list[Value]]:
    """The registers of a fragment, by operand of one instruction."""
    registers, (rows, columns) = x.mapping[value], _tiles(value)
    each = len(registers) // (rows * columns)
    return [registers[first : first + each] for first in range(0, len(registers), each)]


def _tiles(value: Value) -> tuple[int, int]:
    return value.fragment.held_as.tiles(value.fragment.dims)


MATRIX_RULES: dict[type[Op], Rule] = {
    matrix.LdMatrix: _ldmatrix,
    matrix.StMatrix: _stmatrix,
    matrix.FromWords: _from_words,
    matrix.ToWords: _to_words,
    matrix.Slice: _slice,
    matrix.Mma: _mma,
}
