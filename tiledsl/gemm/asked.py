"""Read what a command line asks of `gemm`: the dtypes of `--format` and `--out`."""

from __future__ import annotations

from tiledsl.errors import UsageError
from tiledsl.gemm.formats import FORMATS, RESIDUES, Format
from tiledsl.ir.types import F64, DType
from tiledsl.runtime.arrays import NUMPY_NAMES

__all__ = ["asked_format"]


def asked_format(command: str, format: str, out: str | None) -> tuple[Format, DType]:
    """Return what is multiplied if A and B are of the dtype `format`, and the dtype of C: `out`, or what `gemm` makes.

    Args:
        command: The command that errors name.
        format: The name of a dtype, tf32 among them.
        out: The name of another, or None.

    Raises:
        UsageError: `gemm` has no such product without a precision that commands cannot give.
    """
    asked = NUMPY_NAMES.get(format, format)
    known = [a for (a, b), found in FORMATS.items() if a == b and found.sums != F64]
    if asked not in known:
        exact = " or ".join(repr(scheme.name) for scheme in RESIDUES.values() if scheme.dtype.name == asked)
        message = f"{command}: gemm takes no {format!r}"
        if exact:
            message += f" without precision={exact}, and {command} has no option for that"
        raise UsageError(f"{message}\n  fix: give one of {', '.join(known)}")
    found = FORMATS[asked, asked]
    results = {result.name: result for result in found.results}
    wanted = found.results[0].name if out is None else NUMPY_NAMES.get(out, out)
    if wanted not in results:
        raise UsageError(f"{command}: a C of {out} for {found}\n  fix: give one of {', '.join(results)}")
    return found, results[wanted]
