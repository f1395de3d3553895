"""The rings of the gallery at their real number of stages, used twice and more, in clusters of two as well: one run
says of all schedules that each arrival and each wait is of its phase."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gallery import gallery_module, reference

CLUSTERS = (1, 1), (2, 1), (1, 2)
RINGS = "hopper_ring", "hopper_roles", "hopper_persistent", "hopper_store", "hopper_pingpong", "hopper_fastest"
CASES = [
    (name, {"CLUSTER": cluster} if cluster != (1, 1) else {})
    for name in RINGS
    for cluster in CLUSTERS
    if cluster == (1, 1) or name in ("hopper_persistent", "hopper_fastest")
]


@pytest.mark.parametrize(("name", "consts"), CASES, ids=str)
def test_a_ring_does_the_same_under_all_schedules(name: str, consts: dict[str, Any]) -> None:
    gallery = gallery_module()
    kernel = gallery.load(next(entry for entry in gallery.HOPPER if entry.kernel == name))
    default = {const.name: const.default for const in kernel.signature.consts}
    size = 2 * default["BM"], 2 * default["BN"], (2 * default["STAGES"] + 1) * default["BK"]
    given = gallery.as_given(kernel, *reference().random_problem(*size, format="bf16"))
    assert kernel.check(*given, unwritten="C", **consts).verdict == "clean"
