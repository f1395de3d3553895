"""Filetests: kernels in the textual IR with their inputs and expected results in one file.

A `.tir` file holds kernels; comment lines before a kernel say what to do with it::

    ; run: special values                       runs the kernel; its expected results are bits
    ; in A: f32 [4] = 3f800000 7fffffff ...     bits in hexadecimal; or zeros, iota, fill(bits),
    ; in n: i32 = 00000003                      random(seed), specials(axis of count); a scalar has no shape
    ; out C: f32 [4] = 40000000 ...             continued on lines that start with three blanks
    ; out D: f32 [4] within 2 ulp = ...         for rows that are not exact
    ; printed: x = 3                            a line that the emulator prints
    ; emulate twice: lambda a: a + a            the function that ptx.inline names
    ; pass: canonicalize, cse                   runs passes; then the printed kernel has, in order,
    ; check: arith.add %x, %y                   this in a line, and after the last check
    ; check-not: arith.mul                      nowhere (anywhere in the kernel)

and trailing comments on a line of a kernel say that it is wrong::

    gpu.barrier ; error: must be reached        the verifier or a pass refuses it here, in these words
    debug.assert %p ; stops: assertion failed   the emulator stops here

A tile-level kernel runs on the emulator as it stands and after all passes. A `gpu` test runs the same
files on a GPU. Tensors that only `out` names start as zeros.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.filetests.values import parse_bits, special_values, to_hex
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES, DType, GlobalType

__all__ = ["Argument", "FileTest", "Run", "random_values", "read_filetests", "strided"]

Array = NDArray[Any]

_ARGUMENT = re.compile(r"(\w+): (\w+)(?: \[([\d, ]+)\])?(?: within (\d+) ulp)? =(.*)", re.DOTALL)
_DIRECTIVE = re.compile(r"; (run|in|out|printed|emulate|pass|check-not|check)\b:? ?(.*)")
_EXPECTED = re.compile(r".*; (error|stops): (.*)")
_SOURCE = re.compile(r"(\w+)\(([^)]*)\)")


@dataclass(frozen=True)
class Argument:
    """One tensor (or scalar: `shape` is None) of a run, and where its bits come from."""

    name: str
    dtype: DType
    shape: tuple[int, ...] | None
    source: str
    ulp: int = 0

    def array(self) -> Array:
        """The values, flat order row-major."""
        return _values(self).copy()

    def read(self) -> Array:
        shape = self.shape or ()
        size = int(np.prod(shape))
        call = _SOURCE.fullmatch(self.source)
        match (call.group(1), call.group(2)) if call else (self.source, ""):
            case "zeros", _:
                values = np.zeros(size, numpy_dtype(self.dtype))
            case "iota", _:
                values = np.arange(size).astype(numpy_dtype(self.dtype))
            case "fill", bits:
                values = np.repeat(parse_bits(bits, self.dtype), size)
            case "random", seed:
                values = random_values(int(seed), self.dtype, size)
            case "specials", text:
                axis, count = (int(part) for part in text.split(" of "))
                values = special_values(self.dtype, axis, count)
            case _:
                values = parse_bits(self.source, self.dtype)
        assert values.size == size, f"{self.name}: {values.size} values for {size} elements"
        return values.reshape(shape)


@cache
def _values(argument: Argument) -> Array:
    """Read from the text once: a kernel runs at both levels, for several tests."""
    return argument.read()


@dataclass
class Run:
    """One `; run:`. `inputs` and `outputs` by name; `printed` lines in any order."""

    name: str
    inputs: dict[str, Argument] = field(default_factory=dict[str, Argument])
    outputs: dict[str, Argument] = field(default_factory=dict[str, Argument])
    printed: list[str] = field(default_factory=list[str])

    def arguments(self, kernel: Kernel) -> dict[str, Any]:
        """Fresh arguments; tensors have the strides that the kernel's types ask for."""
        given: dict[str, Any] = {}
        types = {a.name: a.type for a in kernel.body.args if isinstance(a.type, GlobalType)}
        for name, argument in self.inputs.items():
            array = argument.array()
            given[name] = array[()] if argument.shape is None else strided(array, types.get(name))
        for name, argument in self.outputs.items():
            if name not in given:
                zeros = np.zeros(argument.shape or (), numpy_dtype(argument.dtype))
                given[name] = strided(zeros, types.get(name))
        return given

    def differences(self, arguments: Mapping[str, Any]) -> list[str]:
        """What is not as expected, one line a tensor; equal means equal bits, except `within n ulp`."""
        return [text for a in self.outputs.values() if (text := _difference(a, arguments[a.name]))]


@dataclass(eq=False)
class FileTest:
    """One kernel with its directives. `line`: where its text starts in the file.

    expected: (kind, line, message) of every trailing ``; error:`` or ``; stops:``.
    """

    path: Path
    text: str
    line: int
    runs: list[Run] = field(default_factory=list[Run])
    passes: list[str] = field(default_factory=list[str])
    checks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    expected: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    emulations: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        word = re.search(r"kernel (\w+)", self.text)
        return f"{self.path.parent.name}/{self.path.stem}:{word.group(1) if word else self.line}"

    def kernel(self) -> Kernel:
        """Parsed afresh; lines of errors are the file's."""
        kernel = parse_kernel("\n" * (self.line - 1) + self.text, str(self.path))
        kernel.externals.update(self.emulations)
        return kernel


def read_filetests(path: Path) -> list[FileTest]:
    """The kernels of a file, each with the directives between it and the one before."""
    tests: list[FileTest] = []
    lines = path.read_text().splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("kernel ")]
    assert starts, f"{path}: no kernel"
    before = 0
    for number, start in enumerate(starts):
        end = next(n for n in range(start, len(lines)) if lines[n] == "}") + 1
        test = FileTest(path, "\n".join(lines[start:end]), start + 1)
        for directive in _joined(lines[before:start]):
            _apply(test, directive)
        for offset, line in enumerate(lines[start:end]):
            if wanted := _EXPECTED.fullmatch(line):
                test.expected.append((wanted.group(1), start + 1 + offset, wanted.group(2).strip()))
        tests.append(test)
        before = end
        assert number + 1 == len(starts) or end <= starts[number + 1], f"{path}: kernels overlap"
    return tests


def _joined(lines: list[str]) -> list[str]:
    """Directive lines with their continuations."""
    joined: list[str] = []
    for line in lines:
        if line.startswith(";   ") and joined:
            joined[-1] += " " + line[1:].strip()
        elif line.startswith("; "):
            joined.append(line)
    return joined


def _apply(test: FileTest, line: str) -> None:
    match = _DIRECTIVE.fullmatch(line)
    if match is None:
        return  # an ordinary comment
    word, rest = match.groups()
    match word:
        case "run":
            test.runs.append(Run(rest))
        case "in" | "out":
            argument = _argument(rest)
            (test.runs[-1].inputs if word == "in" else test.runs[-1].outputs)[argument.name] = argument
        case "printed":
            test.runs[-1].printed.append(rest)
        case "emulate":
            name, _, function = rest.partition(": ")
            test.emulations[name] = eval(function, {"np": np})  # the repository's own text
        case "pass":
            test.passes += [name.strip() for name in rest.split(",")]
        case _:
            test.checks.append((word, " ".join(rest.split())))


def _argument(text: str) -> Argument:
    match = _ARGUMENT.fullmatch(text)
    assert match is not None, f"not an argument: {text}"
    name, dtype, dims, ulp, source = match.groups()
    shape = None if dims is None else tuple(int(d) for d in dims.split(","))
    return Argument(name, DTYPES[dtype], shape, source.strip(), int(ulp or 0))


def random_values(seed: int, dtype: DType, size: int) -> Array:
    """Normal floats; integers over the whole range. The bit generator is the same in all NumPy versions."""
    words = np.random.PCG64(seed).random_raw(size)
    if dtype.python is float:
        return ((words >> np.uint64(44)).astype(np.float64) / 2**17 - 4).astype(numpy_dtype(dtype))
    if dtype.kind == "bool":
        return (words & np.uint64(1)).astype(np.bool_)
    return words.astype(f"u{dtype.bytes}").view(numpy_dtype(dtype))


def strided(array: Array, type_: GlobalType | None) -> Array:
    """The same values, laid out as `type_` promises: stride 1 along its unit axis, or along none for -1,
    and rows padded to its alignment."""
    if type_ is None or array.size == 0 or array.ndim == 0:
        return array
    unit = type_.unit if type_.unit >= 0 else array.ndim - 1
    moved = np.moveaxis(array, unit, -1)
    length = moved.shape[-1] * (1 if type_.unit >= 0 else 2)
    multiple = max(1, type_.align // array.itemsize) if array.ndim > 1 else 1
    memory = np.zeros((*moved.shape[:-1], -(-length // multiple) * multiple), array.dtype)
    place = memory[..., : length : length // moved.shape[-1]]
    place[...] = moved
    return np.moveaxis(place, -1, unit)


def _difference(expected: Argument, got: Array) -> str:
    want = expected.array()
    a, b = _bits(want), _bits(np.asarray(got))
    wrong = a != b
    if expected.ulp:
        wrong &= _ulps(want, np.asarray(got)) > expected.ulp
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{expected.name}{list(place)} is {to_hex(np.asarray(got)[place])} ({np.asarray(got)[place]}), "
        f"expected {to_hex(want[place])} ({want[place]}); {int(wrong.sum())} of {want.size} differ"
    )


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def _ulps(want: Array, got: Array) -> Array:
    """Distance in units of the last place; 0 between NaNs, and for equal values of any sign."""
    with np.errstate(all="ignore"):
        distance = np.abs(want.astype(np.float64) - got.astype(np.float64)) / np.spacing(np.abs(want)).astype(
            np.float64
        )
    same = (want == got) | (np.isnan(want) & np.isnan(got))
    return np.where(same, 0, np.nan_to_num(distance, nan=np.inf))
