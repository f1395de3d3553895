"""What a kernel with roles and rings may not say: each is refused at the op that is wrong, by the parser, the verifier,
or the passes that lower rings and roles."""

from __future__ import annotations

import pytest

from tiledsl.errors import CompileError, InternalError, LocatedError, TileError, VerifyError
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.cooperation.lower_roles import COOPERATION
from tiledsl.passes.lower.expand import expand
from tiledsl.passes.manager import Pass, run_passes

RING = """
kernel k(%X: global<i32, [64, 8], unit=1, align=16>, %Y: global<i32, [32], unit=0, align=4>)
  grid(1) threads(64) level(tile) index_bits(32) {
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %8 = arith.constant 8 : index
  %no = arith.constant 0 : i32
  %yes = arith.constant true : bool
  %S = tile.shared_alloc {layout = "row"} : shared<i32, [2, 8, 8]>
  %ring = ring.make %S {stages = 2} : ring<2>
  role.region {title = "load", first = 0, warps = 1, one_thread = true} {
    %begin = ring.cursor %ring : cursor
    %end = control.for %0, %8, %1, %begin : cursor (%i: index, %at: cursor) {
      %slot = ring.acquire %ring, %at : index
      %row = arith.mul %i, %8 : index
      tma.load %S, %slot, %0, %0, %X, %row, %0, %ring, %slot {box = (8, 8), axes = (0, 1)}
      %next = ring.publish %ring, %at : cursor
      control.yield %next
    }
    control.yield
  }
  role.region {title = "read", first = 1, warps = 1} {
    %start = ring.cursor %ring : cursor
    %sum, %last = control.for %0, %8, %1, %no, %start : i32, cursor (%i: index, %sums: i32, %here: cursor) {
      %place = ring.wait %ring, %here : index
      %x = tile.load %S, %place, %0, %0 : i32
      %more = arith.add %sums, %x : i32
      %then = ring.release %ring, %here : cursor
      control.yield %more, %then
    }
    tile.store %Y, %0, %sum
    control.yield
  }
  control.return
}
"""

TURNS = """
kernel k()
  grid(1) threads(288) level(tile) index_bits(32) {
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %8 = arith.constant 8 : index
  role.region {title = "load", first = 0, warps = 1} {
    control.yield
  }
  role.region {title = "math", first = 1, warps = 4, instances = 2} {
    %which = role.instance : index
    role.group_barrier
    role.work %0, %8, %1 (%item: index) {
      role.enter {title = "a"}
      role.leave {title = "a"}
      control.yield
    }
    control.yield
  }
  control.return
}
"""


def refused(text: str, verified: bool = True) -> tuple[TileError, LocatedError]:
    """Return the error, and the first one in it. verified: by the verifier, too, which a compilation does without."""
    kernel = parse_kernel(text)
    with pytest.raises(TileError) as caught:
        run_passes(kernel, COOPERATION, verify_each=verified)
    first = getattr(caught.value, "errors", [caught.value])[0]
    return caught.value, first


def check(base: str, changes: tuple[tuple[str, str], ...], at: str, message: str, verified: bool = True) -> TileError:
    text = base
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is in the text {text.count(old)} times"
        text = text.replace(old, new)
    error, first = refused(text, verified)
    assert message in first.message
    assert at in text.splitlines()[first.loc.line - 1]
    return error


@pytest.mark.parametrize("text", [RING, TURNS], ids=["ring", "turns"])
def test_as_it_stands(text: str) -> None:
    run_passes(parse_kernel(text), COOPERATION, verify_each=True)


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{stages = 2} : ring<2>", "{stages = 0} : ring<0>", "ring<0> has not 1 to 32 stages"),
        ("{stages = 2} : ring<2>", "{stages = 33} : ring<33>", "ring<33> has not 1 to 32 stages"),
        ("{stages = 2} : ring<2>", "{stages = 2} : ring<two>", "expected an integer, found 'two'"),
        ("{stages = 2} : ring<2>", "{stages = 2} : ring", "expected '<'"),
        ("ring.make %S {stages = 2}", "ring.make %S", "needs attribute stages"),
        ("ring.acquire %ring, %at", "ring.obtain %ring, %at", "no such op: ring.obtain"),
    ],
)
def test_text(old: str, new: str, message: str) -> None:
    with pytest.raises(TileError) as caught:
        parse_kernel(RING.replace(old, new))
    assert message in str(caught.value)


# -- the verifier: ops -----------------------------------------------------------------------------

ACQUIRE = "%slot = ring.acquire %ring, %at : index"
WAIT = "%place = ring.wait %ring, %here : index"
NUMBER = "%place = arith.add %0, %1 : index"
RELEASE = "%then = ring.release %ring, %here : cursor"
PUBLISH = "%next = ring.publish %ring, %at : cursor"
MAKE = "%ring = ring.make %S {stages = 2} : ring<2>"
LOAD = 'title = "load", first = 0, warps = 1, one_thread = true'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((MAKE, MAKE.replace("{", "{cluster = (2, 0), ")), "a cluster of (2, 0) blocks"),
        ((MAKE, MAKE.replace("{", "{cluster = (2, 1), ")), "takes tiles of 2 stages"),
        (
            (MAKE, MAKE.replace("%S", "%S, %1, %1").replace("{", "{cluster = (4, 1), ")),
            "a cluster of 4 blocks in a kernel",
        ),
        (
            (MAKE, MAKE.replace("%S", "%S, %no, %1").replace("{", "{cluster = (2, 1), ")),
            "takes its place in the cluster",
        ),
        ((MAKE, MAKE.replace("%S", "")), "takes tiles of 2 stages"),
        ((MAKE, MAKE.replace("2", "3")), "takes tiles of 3 stages"),
        (("%begin = ring.cursor %ring", "%begin = ring.cursor %S"), "not a ring"),
        (("%slot = ring.acquire %ring, %at", "%slot = ring.acquire %ring, %0"), "cursor is index, not cursor"),
        (("%slot = ring.acquire %ring, %at", "%slot = ring.acquire %S, %at"), "not a ring"),
        (("ring.wait %ring, %here", "ring.wait %S, %here"), "not a ring"),
        (("ring.wait %ring, %here", "ring.wait %ring, %0"), "cursor is index, not cursor"),
        (("ring.acquire %ring, %at", "ring.acquire %ring"), "takes 2 operands"),
        ((PUBLISH, PUBLISH.replace("%at", "%0")), "cursor is index, not cursor"),
        ((WAIT, WAIT.replace("%here", "%here {in_flight = 8}")), "0 to 7 are possible"),
        ((RELEASE, "%then = ring.skip %ring, %here, %no : cursor"), "count is i32, not index"),
        ((RELEASE, RELEASE + "\n ring.free %ring, %no"), "slot is i32, not index"),
        ((LOAD, LOAD.replace("warps = 1", "warps = 0")), "attribute warps is 0; 1 to"),
        ((LOAD, LOAD + ", instances = 3"), "attribute instances is 3; 1 to 2"),
        ((LOAD, LOAD + ", instances = 2"), "one thread is one instance"),
        ((LOAD, LOAD + ", registers = 27"), "attribute registers is 27; 0, 24, 32"),
        ((LOAD, LOAD.replace("first = 0", "first = -1")), "0 to 2147483647 are possible"),
        ((LOAD, LOAD.replace("first = 0", "first = 2")), "a role (2, 0) of 64 threads"),
        (("%sum, %last = control.for", "%sum, %last = control.fork"), "no such op"),
    ],
)
def test_ops_of_rings_and_roles(change: tuple[str, str], message: str) -> None:
    old, new = change
    assert old in RING
    text = RING.replace(old, new, 1)
    if "cluster = (2, 1), stages" in new:
        text = text.replace("index_bits(32) {", "index_bits(32) cluster(2, 1, 1) {")
    with pytest.raises((VerifyError, CompileError)) as caught:
        verify(parse_kernel(text))
    assert message in str(caught.value)


# -- the verifier: how they stand together ---------------------------------------------------------

IF = "control.if %yes {{\n {} control.yield }} else {{ control.yield }}"
STANDS: list[tuple[tuple[tuple[str, str], ...], str, str]] = [
    # roles
    ((('{title = "read", first = 1', '{title = "read", first = 0'),), "read", "warp 0 is one of the role load, too"),
    (((MAKE, IF.format("%q = ring.make %S {stages = 2} : ring<2>\n") + "\n" + MAKE),), "%q", "not at the top level"),
    (
        (("tile.store %Y, %0, %sum", 'role.region {title = "in", first = 1, warps = 1} {\n control.yield }'),),
        '"in"',
        "not at the top level",
    ),
    (((WAIT, "%w = role.instance : index\n" + WAIT),), "role.instance", "not in a role with instances"),
    ((("%0 = arith", "%w = role.instance : index\n %0 = arith"),), "role.instance", "not in a role with instances"),
    (((WAIT, "role.group_barrier\n" + WAIT),), "group_barrier", "not in a role of whole warpgroups"),
    ((("%0 = arith", "role.group_barrier\n %0 = arith"),), "group_barrier", "not in a role of whole warpgroups"),
    (((WAIT, 'role.enter {title = "a"}\n' + WAIT),), "role.enter", "not directly in a work loop"),
    # cursors
    (((RELEASE, RELEASE + "\n %u = ring.drain %ring, %here : cursor"),), "%u", "uses the cursor here after"),
    (((RELEASE, RELEASE + "\n %p, %q = ring.take %ring, %here : index, cursor"),), "%p", "uses the cursor here after"),
    ((("control.yield %more, %then", "control.yield %more, %here"),), "yield %more", "uses the cursor here after"),
    (
        ((RELEASE, RELEASE + "\n" + IF.format("%u = ring.drain %ring, %then : cursor")),),
        "control.yield %more",
        "uses the cursor then after",
    ),
    (((WAIT, "%u = ring.drain %ring, %start : cursor\n" + WAIT),), "%u", "uses the cursor start after"),
    (
        (
            (
                "tile.store %Y",
                "%c = ring.cursor %ring : cursor\n control.for %0, %8, %1 (%j: index) {\n"
                "%u = ring.drain %ring, %c : cursor\n control.yield }\n tile.store %Y",
            ),
        ),
        "%u",
        "advances a cursor in a loop that does not carry it",
    ),
    (
        (
            (
                MAKE,
                MAKE + '\n %T = tile.shared_alloc {layout = "row"} : shared<i32, [2, 8, 8]>\n'
                "%other = ring.make %T {stages = 2} : ring<2>",
            ),
            (WAIT, WAIT.replace("%ring", "%other")),
            (RELEASE, RELEASE.replace("%ring", "%other")),
        ),
        "%place",
        "the cursor is another ring's",
    ),
    (
        (
            (
                MAKE,
                MAKE + '\n %T = tile.shared_alloc {layout = "row"} : shared<i32, [2, 8, 8]>\n'
                "%other = ring.make %T {stages = 2} : ring<2>",
            ),
            ("control.yield %more, %then", "%c = ring.cursor %other : cursor\n control.yield %more, %c"),
        ),
        "%place",
        "the cursor is another ring's",
    ),
    # uses
    (((WAIT, NUMBER),), "ring.release", "ends no use of this ring that ring.wait has begun here"),
    (
        ((ACQUIRE, NUMBER.replace("place", "slot")),),
        "ring.publish",
        "ends no use of this ring that ring.acquire has begun",
    ),
    (((WAIT, "%w = ring.wait %ring, %here : index\n" + WAIT),), "ring.wait", "does not end in this block"),
    (((PUBLISH, "%next = ring.drain %ring, %at : cursor"),), "ring.acquire", "does not end in this block"),
]


@pytest.mark.parametrize(("changes", "at", "message"), STANDS)
def test_rings_and_roles_together(changes: tuple[tuple[str, str], ...], at: str, message: str) -> None:
    assert isinstance(check(RING, changes, at, message), VerifyError)


@pytest.mark.parametrize(
    ("changes", "at", "message"),
    [
        ((('role.enter {title = "a"}\n', "\n"),), "role.leave", "the turn a is not entered once and then left once"),
        ((('role.leave {title = "a"}\n', "\n"),), "role.enter", "the turn a is not entered once"),
        ((('role.leave {title = "a"}', 'role.leave {title = "b"}'),), "role.enter", "the turn a is not entered once"),
        (
            (('role.leave {title = "a"}\n', 'role.leave {title = "a"}\nrole.leave {title = "a"}\n'),),
            "leave",
            "the turn a is not entered once",
        ),
        (
            (
                (
                    'role.leave {title = "a"}',
                    'role.leave {title = "a"}\nrole.enter {title = "a"}\nrole.leave {title = "a"}',
                ),
            ),
            "role.leave",
            "the turn a is not entered once",
        ),
        ((("role.work", "control.for"),), "role.enter", "not directly in a work loop of a role"),
        (
            (("warps = 4, instances = 2", "warps = 2, instances = 2"),),
            "group_barrier",
            "not in a role of whole warpgroups",
        ),
        ((("role.work %0, %8, %1 (", "role.work %0, %8, %1 {unroll = 2} ("),), "role.work", "are not unrolled"),
        ((("role.work %0, %8, %1 (", "role.work %0, %8, %1 {stages = 2} ("),), "role.work", "are not unrolled"),
    ],
)
def test_turns(changes: tuple[tuple[str, str], ...], at: str, message: str) -> None:
    assert isinstance(check(TURNS, changes, at, message), VerifyError)


def test_a_ring_is_not_carried() -> None:
    text = RING.replace(
        MAKE, MAKE + "\n%same = control.if %yes : ring<2> {\n control.yield %ring } else {\n control.yield %ring }"
    )
    with pytest.raises(VerifyError, match=r"control\.if: carries ring<"):
        verify(parse_kernel(text))


# -- what the passes refuse ------------------------------------------------------------------------

TMA = "tma.load %S, %slot, %0, %0, %X, %row, %0, %ring, %slot {box = (8, 8), axes = (0, 1)}"
X = "%x = tile.load %S, %place, %0, %0 : i32"
READ = """  role.region {title = "read", first = 1, warps = 1} {"""
TAKE = "%place, %then = ring.take %ring, %here : index, cursor"
THIRD = """  role.region {title = "again", first = 2, warps = 1} {
    %three = ring.cursor %ring : cursor
    BODY
    control.yield
  }
"""
FILLED = """%p = ring.acquire %ring, %three : index
    tile.store %S, %p, %0, %0, %no
    %q = ring.publish %ring, %three : cursor"""
USED = """%p = ring.wait %ring, %three : index
    %v = tile.load %S, %p, %0, %0 : i32
    %q = ring.release %ring, %three : cursor"""


@pytest.mark.parametrize(
    ("changes", "at", "message"),
    [
        (
            ((ACQUIRE, ""), (TMA, ""), (PUBLISH, PUBLISH.replace("publish", "drain"))),
            "ring.make",
            "this ring is never filled",
        ),
        (
            ((WAIT, ""), (X, "%x = arith.constant 1 : i32"), (RELEASE, RELEASE.replace("release", "drain"))),
            "ring.make",
            "this ring is never used",
        ),
        (
            (("threads(64)", "threads(96)"), (READ, THIRD.replace("BODY", USED) + READ)),
            "ring.wait %ring, %here",
            "this ring is used by the role again already, and now by the role read",
        ),
        (
            (("threads(64)", "threads(96)"), (READ, THIRD.replace("BODY", FILLED) + READ)),
            "ring.acquire %ring, %three",
            "this ring is filled by the role load already, and now by the role again",
        ),
        (
            (
                (
                    "%begin = ring.cursor %ring : cursor",
                    "%begin = ring.cursor %ring : cursor\n%three = ring.cursor %ring : cursor\n" + USED,
                ),
                (WAIT, ""),
                (X, "%x = arith.constant 1 : i32"),
                (RELEASE, RELEASE.replace("release", "drain")),
            ),
            "ring.wait",
            "the role load fills this ring, and uses it as well",
        ),
        (
            ((PUBLISH, "tile.store %S, %slot, %0, %0, %no\n" + PUBLISH),),
            "tma.load",
            "the role load reaches the tiles of a ring by store() and by tma_load()",
        ),
        (
            (
                (
                    RELEASE,
                    RELEASE + "\n%w = ring.wait %ring, %then {in_flight = 1} : index\n"
                    "%third = ring.release %ring, %then : cursor",
                ),
                ("yield %more, %then", "yield %more, %third"),
            ),
            "%w",
            "in_flight=1, and elsewhere in_flight=0",
        ),
        (((X, "%x = arith.constant 1 : i32"),), "ring.make", "the tile S of this ring is never read in its ring.use()"),
        (
            ((RELEASE, RELEASE + "\nring.free %ring, %0"),),
            "ring.free",
            "slots of this ring are released here, and never taken",
        ),
        (((WAIT, TAKE), (RELEASE, "")), "ring.take", "slots of this ring are taken here, and never released"),
        (
            ((TMA, TMA.replace("(8, 8)", "(4, 8)")),),
            "ring.acquire",
            "ring.fill() loads 128 bytes into s.S, which has 256",
        ),
        (
            (
                (
                    MAKE,
                    '%T = tile.shared_alloc {layout = "row"} : shared<i32, [2, 8, 8]>\n' + MAKE.replace("%S", "%S, %T"),
                ),
                (X, X + "\n%y = tile.load %T, %place, %0, %0 : i32"),
            ),
            "ring.acquire",
            "ring.fill() loads nothing into s.T",
        ),
        (
            (
                (
                    MAKE,
                    MAKE
                    + "\n%c = ring.cursor %ring : cursor\n%w = ring.wait %ring, %c : index\n"
                    + "%d = ring.release %ring, %c : cursor",
                ),
            ),
            "ring.wait %ring, %c",
            "ring.use() outside of a role",
        ),
        (
            (("[2, 8, 8]", "[2, 1024, 256]"), (TMA, TMA.replace("(8, 8)", "(1024, 256)"))),
            "ring.acquire",
            "a slot of this ring takes 1048576 bytes; an mbarrier counts 1048575 at most",
        ),
        ((("threads(64)", "threads(96)"),), "read", "the roles have 32 + 32 = 64 threads, the block has 96"),
        (((LOAD, LOAD + ", registers = 24"),), "read", "the role read says no registers=, and the role load does"),
    ],
)
def test_what_the_passes_refuse(changes: tuple[tuple[str, str], ...], at: str, message: str) -> None:
    error = check(RING, changes, at, message, verified=False)
    assert isinstance(error, CompileError) and "fix: " in str(error)


ROLES = """
kernel k()
  grid(1) threads({threads}) level(tile) index_bits(32) {{
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
{roles}
  control.return
}}
"""


ONE_WARP = 'role.region {{title = "r{0}", first = {0}, warps = 1}} {{\ncontrol.yield\n}}'


def roles(*described: tuple[str, str]) -> str:
    """Roles of four warps an instance, by what else they say and what they do."""
    found: list[str] = []
    warps = 0
    for number, (said, body) in enumerate(described):
        what = f'{{title = "r{number}", first = {warps}, warps = 4{said}}}'
        found.append(f"role.region {what} {{\n{body}\ncontrol.yield\n}}")
        warps += 8 if "instances = 2" in said else 4
    return ROLES.format(threads=32 * warps, roles="\n".join(found))


def turns(*titles: str) -> str:
    pairs = "\n".join(f'role.enter {{title = "{t}"}}\nrole.leave {{title = "{t}"}}' for t in titles)
    return f"role.work %0, %1, %1 (%item: index) {{\n{pairs}\ncontrol.yield\n}}"


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        (roles(*[("", "")] * 9), '"r8"', f"the roles have {' + '.join(['128'] * 9)} = 1152 threads"),
        (
            roles((", registers = 240", ""), (", registers = 240", ""), (", registers = 240", "")),
            '"r0"',
            "the roles' registers are 128 x 240 + 128 x 240 + 128 x 240 = 92160; the block has 384 x 168 = 64512",
        ),
        (
            ROLES.format(threads=32 * 16, roles="\n".join(map(ONE_WARP.format, range(16)))),
            '"r15"',
            "role() needs 1 more named barriers, and 15 of 15 are taken",
        ),
        (
            roles((", instances = 2", turns(*"abcdefg"))),
            'title = "g"',
            "a turn needs 2 more named barriers, and 14 of 15 are taken",
        ),
        (
            roles((", instances = 2", turns(*"abcdef") + "\nrole.group_barrier")),
            "role.group_barrier",
            "a role of several warpgroups needs 2 more named barriers, and 14 of 15 are taken",
        ),
    ],
)
def test_what_roles_need_together(text: str, at: str, message: str) -> None:
    error = check(text, (), at, message, verified=False)
    assert isinstance(error, CompileError) and "fix: " in str(error)


@pytest.mark.parametrize(("text", "op"), [(RING, "ring.make"), (TURNS, "role.region")], ids=["ring", "turns"])
def test_expand_takes_none_of_them(text: str, op: str) -> None:
    """That they are gone by then is the pipeline's to see to."""
    with pytest.raises(InternalError, match=f"expand has no rule for {op}"):
        run_passes(parse_kernel(text), [Pass("expand", expand)])
