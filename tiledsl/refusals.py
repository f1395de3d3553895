"""What is refused before a kernel runs: every code with its meaning, the usual fix, and an example that has this error.

A code never changes its meaning, and none is used again. C1xx: Python; C2xx: dtypes; C3xx: shapes, indices, layouts;
C4xx: memory and copies; C5xx: products; C6xx: threads that work together; C7xx: targets and what they can have; C8xx:
calls; C9xx: the compiler itself. An example is the body of a kernel as `program` completes it, or a whole program.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """Of errors or findings: `text` says what they are, `example` is a few lines of a kernel that is wrong."""

    code: str
    name: str
    text: str
    fix: str
    example: str


HEAD = """\
import numpy as np

from tiledsl import *
from tiledsl.dims import K, M, N


"""
START = """\
@tile_kernel
def k(X: Global[f32, M, N], Y: Global[f32, M, N], A: Global[bf16, M, K]):
    b, t = grid(M), threads(128)
"""

_TABLE = {
    "C101": (
        "not part of the language",
        "A statement, an operator or another construct of Python that kernels do not have.",
        "the message says what to write instead; docs/language.md has what there is",
        "try:\n    X[b, t] = 0\nexcept ValueError:\n    pass",
    ),
    "C102": (
        "source not readable",
        "A kernel is compiled from its source, which is not there, or is no longer what Python runs.",
        "write it in a file or a notebook cell; import a changed file again",
        'exec("def f(x): return x + 1")\nk = tile_kernel(f)',
    ),
    "C103": (
        "name without a value",
        "A name is not defined, not assigned on every path that leads here, or means nothing at this place.",
        "assign it before, on every path",
        "if t < 8:\n    x = X[b, t]\nY[b, t] = x",
    ),
    "C104": (
        "not possible on this value",
        "The value is of a kind for which this does not exist: no such attribute, not callable, no sequence.",
        "the message says what the value is; use what its kind has",
        "Y[b, t] = X.data[b, t]",
    ),
    "C105": (
        "wrong arguments",
        "The arguments of a function of the language are too many, too few, of another kind or outside of their range.",
        "call it as its signature and docstring say",
        "Y[b, t] = shuffle_xor(X[b, t], 1, width=5)",
    ),
    "C106": (
        "needs compile-time values",
        "Python computes this while the kernel is compiled, but a value is only known when it runs.",
        "use const parameters and unroll(); or functions of the language, where there are some",
        "f = fragment((4,), f32)\nfor i in range(4):\n    f[i] = X[b, i]  # i is known at run time: unroll(4)",
    ),
    "C107": (
        "no effect",
        "An expression whose value nobody takes.",
        "assign its value, or remove it",
        "X[b, t] + 1",
    ),
    "C108": (
        "end of a function or region",
        "A return or a break is where it cannot be, or a tile function returns a value on some of its paths only.",
        "let functions end with one return of a value, and keep exits out of `with`",
        "Y[b, t] = X[b, t]\nreturn 1",
    ),
    "C109": (
        "changes its type",
        "A name has a value of another type, shape or dtype behind a branch or a loop than it has elsewhere.",
        "give it one type on all paths: start with f32(0), not with 0",
        "x = 0\nfor i in range(N):\n    x = X[b, i]\nY[b, t] = x",
    ),
    "C110": (
        "too much to compile",
        "A limit of the compiler, which keeps a compilation from running for ever: ops, items, depth.",
        "loop with range() in place of unroll(), and nest less",
        "for i in unroll(100000):\n    Y[b, t] = X[b, i]",
    ),
    "C111": (
        "Python raised an exception",
        "Code of yours that runs while the kernel is compiled raised an exception.",
        "correct what the message names; its traceback is the __cause__ of the error",
        "x = 1 // 0",
    ),
    "C112": (
        "assertion failed",
        "The condition of an assert is false at compile time.",
        "use other consts, or correct the condition",
        'assert X.dtype is f16, "made for f16"',
    ),
    "C113": (
        "state that may change",
        "The kernel would change a list from outside, or read an object whose changes cannot be noticed.",
        "copy what is needed: numbers, a tuple, a frozen dataclass",
        START.replace("@", "seen = []\n\n\n@") + "    seen.append(1)",
    ),
    "C114": (
        "signature of a kernel",
        "A parameter of a kernel is annotated in another way than Global[dtype, dims...], a dtype, or const.",
        "annotate each parameter; docs/language.md lists the possibilities",
        "@tile_kernel\ndef k(X: Global[f32, M], n: int):\n    X[grid(M)] = n",
    ),
    "C115": (
        "declaration of the launch",
        "grid() or threads() is missing, twice there, under a condition, or has extents that the host cannot compute.",
        "call both once, at the top of the kernel, with sizes of tensors and consts",
        "@tile_kernel\ndef k(X: Global[f32, M]):\n    X[threads(64)] = 0",
    ),
    "C116": (
        "comment that accepts nothing",
        "A comment `tiledsl: accept` that names no code, no reason, or a code that is none of a finding.",
        "write # tiledsl: accept T101 because REASON",
        "@tile_kernel\ndef k(X: Global[f32, M]):\n    X[grid(M)] = 0  # tiledsl: accept T101\n    threads(1)\n\n\n"
        "k.check(np.zeros(2, np.float32))",
    ),
    "C201": (
        "two dtypes",
        "The operands of an operation have different dtypes; none is converted unasked.",
        "convert one of them: f32(x)",
        "Y[b, t] = X[b, t] + f16(1)",
    ),
    "C202": (
        "number that does not fit",
        "A number is not exact in the dtype that it gets here, or outside of its range.",
        "write a number that the dtype has, or convert it: f32(0.1) rounds",
        "x = i32(3) + 0.5",
    ),
    "C203": (
        "another dtype is needed",
        "A value, an index, a condition or an element has another dtype than this place takes.",
        "convert it: Y.dtype(x), index(i), x != 0",
        "if t:\n    Y[b, t] = 0",
    ),
    "C204": (
        "not defined for this dtype",
        "An operation, a function or a conversion that the dtype does not have.",
        "the message names a way; tables of dtypes are in docs/language.md",
        "Y[b, t] = X[b, t] & 1",
    ),
    "C205": (
        "dtype not known",
        "All operands are plain numbers, so that the dtype of the result is not known.",
        "write f32(...) around one of them",
        "Y[b, t] = sqrt(2)",
    ),
    "C301": (
        "shapes differ",
        "Two tiles, views or fragments have different shapes, and must have one.",
        "give both the same extents",
        "S = shared((32, 16), f32)\ncopy(X[tile(b, 16), tile(0, 32)], S)",
    ),
    "C302": (
        "extent of a shape",
        "An extent is not a positive int that is known at compile time, or larger than any tile can be.",
        "use const parameters",
        "S = shared((N,), f32)",
    ),
    "C303": (
        "outside of its extent",
        "A compile-time index or range is outside of the extent that it indexes.",
        "use indices from 0 to the extent less 1",
        "S = shared((16,), f32)\nS[16] = f32(0)",
    ),
    "C304": (
        "number of axes",
        "More or fewer indices than there are axes, or a view of another rank than this takes.",
        "give one index for each axis; a number drops an axis of a view",
        "Y[b, t] = X[b]",
    ),
    "C305": (
        "part of a tensor",
        "A slice has a length that is not known, is empty or goes backwards, or a part stands for an element.",
        "use tile(i, B), or a slice with compile-time bounds",
        "S = shared((4, 64), f32)\ncopy(X[:, tile(0, 64)], S)",
    ),
    "C306": (
        "layout does not fit",
        "The layout of a shared tile does not fit its shape.",
        "leave layout= out, so that the compiler chooses; or change the extents",
        "S = shared((16, 30), f32, layout=swizzled(4, 8))\nS[0, t % 30] = X[b, t]",
    ),
    "C307": (
        "held by other threads",
        "A fragment is distributed over threads in another way than this needs, or over others than there are.",
        "make it with the layout that the message names, or convert() it",
        "acc = fragment((64, 64), f32, mma.m16n8k16.acc((2, 1)))  # 64 threads",
    ),
    "C308": (
        "more registers than there are",
        "A fragment has more elements than a thread has registers.",
        "make it smaller, or spread it over more threads",
        "f = fragment((64, 64), f32)",
    ),
    "C401": (
        "width of an access",
        "So many bytes cannot be accessed at once: no such width, or the address is not known to be a multiple of it.",
        "use a smaller vec=, or indices and strides that are multiples of it",
        "x = X.load(b, t, vec=16)",
    ),
    "C402": (
        "wrong kind of memory",
        "A function takes a Global, a shared tile or a view of one, and got something else.",
        "pass what the message names",
        "S = shared((16, 16), f32)\ntma_prefetch(S)",
    ),
    "C403": (
        "absent tensor",
        "An optional tensor is None in this call, and the kernel uses it.",
        "write `if bias is not None:` around it",
        "@tile_kernel\ndef k(X: Global[f32, M], bias: Global[f32, M] | None = None):\n"
        "    i = grid(M)\n    threads(32)\n    X[i] = bias[i]\n\n\nk(np.zeros(3, np.float32))",
    ),
    "C404": (
        "copy that the threads cannot share",
        "copy() cannot distribute a tile over the threads in accesses of this width.",
        "use another vec=, or extents that divide equally",
        "S = shared((8, 8), f32)\ncopy(X[tile(b, 8), tile(0, 8)], S, vec=16)",
    ),
    "C405": (
        "what TMA cannot move",
        "TMA takes aligned addresses and strides, rows of whole 16 bytes along the axis of stride 1, and one thread.",
        "the message says which of them is missing",
        "S, bars = shared((64, 64), bf16, layout=swizzle_128b), shared((1,), u64)\n"
        "tma_load(A[0:64, 0:64].T, S, mbarrier=(bars, 0))",
    ),
    "C406": (
        "multicast",
        "A load by TMA for several blocks of a cluster, which do not need the same, or cannot share it equally.",
        "multicast along the axis whose blocks need the same part",
        "S, bars = shared((64, 64), bf16, layout=swizzle_128b), shared((1,), u64)\n"
        'tma_load(A[0:64, 0:64], S, mbarrier=(bars, 0), multicast="m")  # the kernel has no clusters',
    ),
    "C407": (
        "copy without its wait",
        "An asynchronous copy is not waited for on every path, or a wait has no copy that it could be for.",
        "wait(token) before the tile is read; pipelined() waits by itself",
        "S = shared((4, 128), f32)\ncopy_async(X[0:4, 0:128], S)\nY[b, t] = S[0, t]",
    ),
    "C408": (
        "allocation of a tile",
        "shared() stands under a run-time condition or in a loop, or over= names what is no tile.",
        "allocate tiles at the top of the kernel",
        "if t < 32:\n    S = shared((32,), f32)",
    ),
    "C409": (
        "atomic operation that is not there",
        "No atomic operation has this dtype, order and scope.",
        "docs/memory_model.md lists those that there are",
        "X.atomic_or(b, t, f32(1))",
    ),
    "C410": (
        "buffer of a store",
        "A fragment goes to memory by way of a shared tile, which is missing or has another shape than its chunks.",
        "give via= a tile of the rows of the fragment, and of columns that divide its columns",
        "L = mma.m16n8k16.acc((4, 1))\nx = fragment((64, 64), f32, L)\nstore_tma(x, X[0:64, 0:64])",
    ),
    "C411": (
        "waiting on a plain load",
        "A loop waits for another thread, but reads by a plain load, which the compiler may do once.",
        "read it by atomic_load(), with the order that the loop needs",
        "while X[b, 0] == 0:\n    pass\nY[b, t] = X[b, t]",
    ),
    "C412": (
        "access before the grid before has ended",
        "A kernel that is launched early reads or writes a tensor before it waits for the grid before it.",
        "wait at the top, outside of conditions and loops",
        "x = X[b, t]\nptx.griddepcontrol_wait()\nY[b, t] = x",
    ),
    "C501": (
        "no such product",
        "The tensor cores do not multiply these dtypes into that one, by this instruction.",
        "convert an operand; docs/tensor_cores.md lists the products",
        "acc = fragment((64, 8), f32, mma.m16n8k8.acc((4, 1)))\n"
        "acc = mma(load_fragment(X[0:64, 0:8], acc.a), load_fragment(Y[0:8, 0:8], acc.b), acc)",
    ),
    "C502": (
        "operand of a product",
        "An operand has another shape, or is held in another way, than the accumulator needs.",
        "load it with acc.a or acc.b, and give a as many columns as b has rows",
        "acc = fragment((64, 8), f32, mma.m16n8k16.acc((4, 1)))\n"
        "acc = mma(load_fragment(A[0:64, 0:16], acc.b), load_fragment(A[0:16, 0:8], acc.b), acc)",
    ),
    "C503": (
        "shape of wgmma",
        "An accumulator or a step of wgmma that the instruction does not have.",
        "use 64 rows a warpgroup, a multiple of 8 columns up to 256, and a multiple of k",
        "acc = wgmma.accumulator((64, 252), f32)",
    ),
    "C504": (
        "accumulator in flight",
        "Products are added to an accumulator until it is waited for. Before that it is passed on, once, and no more.",
        "continue with the result, acc = wgmma(a, b, acc), and read x = acc.wait()",
        "S = shared((64, 64), bf16, layout=swizzle_128b)\nacc = wgmma(S, S.T, wgmma.accumulator((64, 64), f32))",
    ),
    "C505": (
        "tile of TMA or a product",
        "A shared tile has a layout, or a part of it is used, that TMA, wgmma or ldmatrix cannot read or write.",
        "give it layout=swizzle_128b (or 64b, 32b), and take whole panels of it",
        "S = shared((64, 64), bf16)\nacc = wgmma(S, S.T, wgmma.accumulator((64, 64), f32))\nx = acc.wait()",
    ),
    "C506": (
        "registers of an instruction",
        "A raw matrix instruction takes other registers, in number or dtype.",
        "see its docstring: help(ptx.mma_sync)",
        "S = shared((32, 32), bf16)\na = ptx.ldmatrix(S, 0, 0, num=3)",
    ),
    "C601": (
        "not reached by all",
        "A barrier or another operation that threads execute together, under a condition in which they differ.",
        "move it out of the condition",
        "if t < 32:\n    barrier()",
    ),
    "C602": (
        "declaration of a role",
        "A role stands in a loop or a condition, has the name of another one, or other threads than the block.",
        "write roles side by side in the kernel itself, each with a name of its own",
        'with role("load"):\n    X[b, 0] = 1\nwith role("load"):\n    Y[b, 0] = 1',
    ),
    "C603": (
        "tiles of a ring",
        "A ring has no tiles, those of another one, or more bytes than an mbarrier counts.",
        "give each ring new tiles: Ring(4, a=shared(...), b=shared(...))",
        "ring = Ring(4)",
    ),
    "C604": (
        "a ring that does not come out even",
        "What is filled is not what is used: a tile is loaded or read never, twice, in part, or by the wrong role.",
        "fill every tile of a slot once in one role, and use it in another one",
        '@tile_kernel(arch="sm_90a")\ndef k(A: Global[bf16, M, K]):\n    grid(1)\n'
        "    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))\n"
        '    with role("load", threads=1):\n        with ring.fill() as s:\n            tma_load(A[0:64, 0:64], s.a)',
    ),
    "C605": (
        "region of a ring, turn",
        "ring.fill(), ring.use() or a turn stands outside of a role, inside of another one, or where instances differ.",
        "use a slot once at a time, in a role; with instances inside `for k in t.k`",
        "ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))\n"
        "with ring.use() as s:\n    x = load_fragment(s.a, mma.m16n8k16.acc((4, 1)))",
    ),
    "C606": (
        "schedule",
        "A schedule is made or gone through where it cannot be, or its functions give what is no work item.",
        "make it at the top of the kernel: work = persistent(tile_schedule(...))",
        "work = tile_schedule(M, N, 64, tile=(64, 64, 64), splits=0)",
    ),
    "C607": (
        "loop that cannot be pipelined",
        "A pipelined() loop has no copy that could begin ahead, or one that depends on what the loop does meanwhile.",
        "copy whole tiles to shared memory in its body, and use each of them afterwards",
        "for i in pipelined(range(4), stages=2):\n    Y[b, t] = X[b, i]",
    ),
    "C608": (
        "mbarrier",
        "A load by TMA has no mbarrier, or this is none.",
        "write it in `with ring.fill() as s:`, or pass mbarrier=(bars, i) with bars = shared((1,), u64)",
        "S = shared((64, 64), bf16, layout=swizzle_128b)\ntma_load(A[0:64, 0:64], S)",
    ),
    "C609": (
        "needs other threads than the role has",
        "All threads of the block do this together, and the role has some of them, or one.",
        "do it outside of the roles, or with operations of one thread",
        '@tile_kernel(arch="sm_90a")\ndef k(X: Global[f32, M]):\n    grid(1)\n'
        '    with role("one", threads=1):\n        barrier()',
    ),
    "C701": (
        "unknown target",
        "The compiler has no target of this name.",
        "the message lists them",
        '@tile_kernel(arch="sm_1")\ndef k(X: Global[f32, M]):\n    X[grid(M)] = threads(1)',
    ),
    "C702": (
        "target lacks a feature",
        "The kernel uses an instruction that the GPU it is compiled for does not have.",
        "compile for a newer one, or use what the message names in its place",
        '@tile_kernel(arch="sm_80")\ndef k(A: Global[bf16, M, K]):\n    grid(1)\n    threads(128)\n    tma_prefetch(A)',
    ),
    "C703": (
        "too much shared memory",
        "The shared tiles of a block are larger than a block of this target can have.",
        "use smaller tiles or fewer stages; over= lets one reuse the bytes of another",
        "S = shared((512, 256), f32)\nS[0, t] = X[b, t]",
    ),
    "C704": (
        "too many threads or barriers",
        "A block has at most 1024 threads, and 16 named barriers.",
        "use fewer threads that each do more, or fewer roles, instances and turns",
        "@tile_kernel\ndef k(X: Global[f32, M]):\n    X[grid(M)] = 0\n    threads(2048)",
    ),
    "C705": (
        "registers of roles",
        "The roles together ask for more registers than the block has, or only some of them ask.",
        "give fewer to the role that copies: registers=40",
        '@tile_kernel(arch="sm_90a")\ndef k(X: Global[f32, M]):\n    grid(1)\n'
        '    with role("load", registers=40, threads=1):\n        X[0] = 1\n'
        '    with role("math", warpgroups=2, registers=240):\n        X[1] = 1',
    ),
    "C706": (
        "refused by the assembler",
        "ptxas does not accept the PTX of the kernel. The error is at the Python line that the PTX line came from.",
        "correct the inline PTX on that line; without any, report it",
        'x = ptx.inline("bogus.f32 $0, $1;", f32, X[b, t])\nY[b, t] = x',
    ),
    "C707": (
        "slow code by the assembler",
        "ptxas says that it serialised wgmma, ignored registers=, or needs a stack frame.",
        "keep accumulators untouched until they are waited for, and indices of fragments known at compile time",
        'store = "{.local .b32 m; st.volatile.local.f32 [m], $1; ld.volatile.local.f32 $0, [m];}"\n'
        "Y[b, t] = ptx.inline(store, f32, X[b, t])",
    ),
    "C708": (
        "operands of inline PTX",
        "The text names operands that there are not, an operand has no size, or an address is no integer.",
        "write $0, $1, ... for results, then operands; convert an index: i32(x)",
        'x = ptx.inline("neg.f32 $0, $2;", f32, X[b, t])\nY[b, t] = x',
    ),
    "C801": (
        "arguments of a call",
        "An argument of a launch is missing, unknown, given twice, or of another kind than the signature has.",
        "call it as its signature says; consts are keyword only",
        "@tile_kernel\ndef k(X: Global[f32, M]):\n    X[grid(M)] = 0\n    threads(1)\n\n\nk()",
    ),
    "C802": (
        "dtype of an argument",
        "An array has another dtype than the signature or another argument asks for, or one that cannot be multiplied.",
        "convert the array",
        "@tile_kernel\ndef k(X: Global[f32, M]):\n    X[grid(M)] = 0\n    threads(1)\n\n\nk(np.zeros(2))",
    ),
    "C803": (
        "shape of an argument",
        "An array has another number of axes than the signature, or an extent that differs where the name is the same.",
        "pass arrays whose extents agree",
        "@tile_kernel\ndef k(X: Global[f32, M]):\n    X[grid(M)] = 0\n    threads(1)\n\n\n"
        "k(np.zeros((2, 2), np.float32))",
    ),
    "C804": (
        "array that cannot be used",
        "It is no array, lies on another device, overlaps one that is written, is read-only, or TMA cannot address it.",
        "pass a dense, writable array of its own on the same device",
        "@tile_kernel\ndef k(X: Global[f32, M], Y: Global[f32, M]):\n    Y[grid(M)] = X[0]\n    threads(1)\n\n\n"
        'x = np.zeros(4, np.float32)\nk(x, x, device="emulator")',
    ),
    "C805": (
        "value of a scalar or const",
        "A scalar is out of range or of another type, or a const is none that a kernel can be compiled for.",
        "pass a value of the declared type; consts are numbers, strings, tuples, dtypes, functions",
        "@tile_kernel\ndef k(X: Global[f32, M], n: i8):\n    X[grid(M)] = f32(n)\n    threads(1)\n\n\n"
        "k(np.zeros(2, np.float32), 300)",
    ),
    "C901": (
        "the compiler fails",
        "A bug of tiledsl.",
        "report it with the kernel; tiledsl repro writes a script that repeats it",
        "",
    ),
    "C902": (
        "textual IR",
        "The text is not what the printer of the IR writes.",
        "see docs/language.md, or print a kernel with k.lower().ir()",
        "kernel k() grid(1) threads(1) level(tile) index_bits(32) {\n  arith.plus\n}",
    ),
    "C903": (
        "invalid IR",
        "IR, written by hand, that breaks an invariant of an op.",
        "correct the op that the message names",
        "kernel k() grid(1) threads(1) level(tile) index_bits(32) {\n"
        "  %0 = arith.constant 1 : i32\n  %1 = arith.sqrt %0 : i32\n  control.return\n}",
    ),
}

KINDS = {code: Kind(code, *row) for code, row in _TABLE.items()}
"""By code."""


def program(kind: Kind) -> str:
    """The example of `kind` as a whole program, in Python or textual IR: a body becomes that of a kernel."""
    if kind.example.startswith("kernel "):
        return kind.example
    if "tile_kernel" in kind.example:
        return f"{HEAD}{kind.example}\n"
    return HEAD + START + "".join(f"    {line}\n" for line in kind.example.splitlines())
