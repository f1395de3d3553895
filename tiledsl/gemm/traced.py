"""Compiles a NumPy formula to a loop: NumPy takes a microsecond for each operation, even on few elements.

`traced` calls a function once, with a `Traced` for each of its numbers. What the function computes of arrays alone,
NumPy computes then, once for all. What it computes of a `Traced` becomes LLVM IR: before the loop if no array takes
part, else in the loop, for 8 elements at a time. All is in f64, operation by operation, so that results have NumPy's
bits. The formula is written once, and may as well be evaluated by NumPy.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from tiledsl.backends.machine_code import address_of, available, compiled, splat

LANES = 8
_NUMBER, _FLAG = f"<{LANES} x double>", f"<{LANES} x i1>"
_COMPARISONS = {"less": "olt", "less_equal": "ole", "greater": "ogt", "greater_equal": "oge", "equal": "oeq"}
_ARITHMETIC = {"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv", "negative": "fneg"}
_OTHERS = _ARITHMETIC | {"bitwise_and": "and", "bitwise_or": "or"}
"""Instructions by NumPy's names."""


class Traced(NDArrayOperatorsMixin):
    """A value of the IR. in_loop: it differs between elements."""

    def __init__(self, trace: _Trace, name: str, flag: bool = False, in_loop: bool = False) -> None:
        self.trace, self.name, self.flag, self.in_loop = trace, name, flag, in_loop

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any) -> Traced:
        return self.trace.operation(ufunc.__name__, *inputs)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Traced:
        return self.trace.operation(function.__name__, *inputs)

    def __bool__(self) -> bool:
        raise TypeError("a traced value is no condition: use np.where, np.minimum or np.maximum")


class _Trace:
    """lines: of IR, before the loop and in it. columns: the bytes of the arrays that the loop reads, numbered."""

    def __init__(self) -> None:
        self.lines: dict[bool, list[str]] = {False: [], True: []}
        self.columns: dict[bytes, int] = {}
        self._known: dict[str, Traced] = {}

    def number(self, name: str) -> Traced:
        """A parameter."""
        everywhere = splat(f"{name}.v", "double", f"%{name}.f", LANES)
        self.lines[False].append(f"%{name}.f = sitofp i64 %{name} to double{everywhere}")
        return Traced(self, f"%{name}.v")

    def value(self, text: str, flag: bool, in_loop: bool) -> Traced:
        """Of an instruction. The same one is not repeated."""
        if text not in self._known:
            self._known[text] = Traced(self, f"%v{len(self._known)}", flag, in_loop)
            self.lines[in_loop].append(f"{self._known[text].name} = {text}")
        return self._known[text]

    def operand(self, x: Any) -> Traced:
        """A value, a constant or an array."""
        if isinstance(x, Traced):
            return x
        array, flag = np.asarray(x, float), np.asarray(x).dtype == bool
        if array.ndim == 0:
            bits = struct.pack(">d", x).hex()
            return Traced(self, f"splat (i1 {int(x)})" if flag else f"splat (double 0x{bits})", flag)
        column = self.columns.setdefault(array.tobytes(), len(self.columns))
        at = self.value(f"getelementptr {_NUMBER}, ptr %from, i64 {column}", False, True)
        loaded = self.value(f"load {_NUMBER}, ptr {at.name}, align 8", False, True)
        return self.operation("greater", loaded, 0) if flag else loaded

    def operation(self, name: str, *inputs: Any) -> Traced:
        """NumPy's of this name, for numbers that are not NaN. Quotients are rounded down exactly for integers below
        2^53."""
        numpy: Any = np
        if name in ("minimum", "maximum"):
            first = self.operation("less" if name == "minimum" else "greater", *inputs)
            return self.operation("where", first, *inputs)
        if name == "divide" and _exactly_invertible(inputs[1]):
            return self.operation("multiply", inputs[0], 1 / np.asarray(inputs[1]))
        if name == "floor_divide":
            return numpy.floor(self.operation("divide", *inputs))
        if name == "remainder":
            return inputs[0] - self.operation("floor_divide", *inputs) * inputs[1]
        operands = [self.operand(x) for x in inputs]
        names, in_loop = [x.name for x in operands], any(x.in_loop for x in operands)
        type_ = _FLAG if operands[-1].flag else _NUMBER
        if name in _COMPARISONS:
            return self.value(f"fcmp {_COMPARISONS[name]} {type_} {', '.join(names)}", True, in_loop)
        if name in ("ceil", "floor", "sqrt"):
            text = f"call {type_} @llvm.{name}.v{LANES}f64({type_} {names[0]})"
        elif name == "where":
            text = f"select {_FLAG} {names[0]}, {type_} {names[1]}, {type_} {names[2]}"
        else:
            text = f"{_OTHERS[name]} {type_} {', '.join(names)}"
        return self.value(text, operands[-1].flag, in_loop)


def _exactly_invertible(x: Any) -> bool:
    """Powers of two: products by their reciprocals are the quotients, and far faster."""
    return not isinstance(x, Traced) and bool(np.all(np.frexp(x)[0] == 0.5))


def traced(function: Callable[..., Sequence[Any]], numbers: int) -> Callable[..., Sequence[NDArray[Any]]]:
    """A function of so many integers that returns what `function` does, arrays of one length. The thread's next call
    overwrites them. It is compiled, if llvmlite is there."""
    if not available():
        return lambda *given: [*np.array(np.broadcast_arrays(*function(*given)))]
    trace, names = _Trace(), [f"n{number}" for number in range(numbers)]
    results = [trace.operand(x) for x in function(*map(trace.number, names))]
    columns = np.array([np.frombuffer(column) for column in trace.columns])
    count, blocks = columns.shape[1], -(-columns.shape[1] // LANES)
    # All columns of a block follow each other, and the last block is filled up with the last element.
    padded = np.pad(columns, ((0, 0), (0, -count % LANES)), mode="edge").reshape(len(columns), blocks, LANES)
    read = np.ascontiguousarray(padded.swapaxes(0, 1))
    run, room = compiled(_source(trace, names, results), 3 + numbers), threading.local()

    def call(*given: int) -> Sequence[NDArray[Any]]:
        if not hasattr(room, "out"):
            room.out = np.empty((len(results), blocks * LANES))
            room.addresses, room.found = (address_of(room.out), address_of(read)), [*room.out[:, :count]]
        run(*room.addresses, blocks, *given)
        return room.found

    return call


def _source(trace: _Trace, names: Sequence[str], results: Sequence[Traced]) -> str:
    """``run(out, columns, blocks, *numbers)``."""
    stores = [
        f"""%before{row} = mul i64 %blocks, {row}
  %index{row} = add i64 %before{row}, %block
  %to{row} = getelementptr {_NUMBER}, ptr %out, i64 %index{row}
  store {_NUMBER} {result.name}, ptr %to{row}, align 8"""
        for row, result in enumerate(results)
    ]
    newline = "\n  "
    return f"""
declare {_NUMBER} @llvm.ceil.v{LANES}f64({_NUMBER})
declare {_NUMBER} @llvm.sqrt.v{LANES}f64({_NUMBER})
declare {_NUMBER} @llvm.floor.v{LANES}f64({_NUMBER})
define i64 @run(ptr noalias %out, ptr noalias %columns, i64 %blocks, {", ".join(f"i64 %{name}" for name in names)}) {{
entry:
  {newline.join(trace.lines[False])}
  br label %body
body:
  %block = phi i64 [ 0, %entry ], [ %next, %body ]
  %from = getelementptr [{len(trace.columns)} x {_NUMBER}], ptr %columns, i64 %block
  {newline.join(trace.lines[True])}
  {newline.join(stores)}
  %next = add i64 %block, 1
  %done = icmp eq i64 %next, %blocks
  br i1 %done, label %exit, label %body
exit:
  ret i64 0
}}
"""


def slowest_of(*times: Any) -> Any:
    """The longest time, and a little of the others: of what hinder each other."""
    squares = (time * time for time in times)
    return np.sqrt(np.sqrt(sum(square * square for square in squares)))


class Options:
    """Options among which a model chooses. model: of batch, m, n and k of a product it gives their times, a NamedTuple
    of terms with a `total`, which is infinite for options that make no sense; and integers that go with each option."""

    def __init__(self, options: Sequence[Any], model: Callable[..., tuple[Any, ...]]) -> None:
        self.options, self.model = options, model

    def fastest(self, *product: int) -> tuple[Any, ...]:
        """Its time, the option, and its integers."""
        times, *more = self._compiled(*product)
        at = int(times.argmin())
        return float(times[at]), self.options[at], *(int(each[at]) for each in more)

    def possible(self, *product: int) -> Iterator[tuple[Any, ...]]:
        """Each that makes sense, its time by terms, and its integers."""
        times, *more = self.model(*product)
        rows = np.array(np.broadcast_arrays(*times, *more)).T
        for at in np.flatnonzero(np.isfinite(times.total)).tolist():
            terms, integers = rows[at, : len(times)].tolist(), rows[at, len(times) :].tolist()
            yield self.options[at], type(times)(*terms), *map(int, integers)

    @cached_property
    def _compiled(self) -> Callable[..., Sequence[NDArray[Any]]]:
        def results(*product: Any) -> tuple[Any, ...]:
            times, *more = self.model(*product)
            return times.total, *more

        return traced(results, 4)
