"""What ``k.explain`` found, as plain data: the parts of a report, with locations where this has numbers of places."""

from __future__ import annotations

import json
from typing import Any, cast

from tiledsl.backends.ptx.sass.program import Loop
from tiledsl.backends.ptx.sass.report import SassReport
from tiledsl.compilation.launch_report import MapsReport, ResourceReport
from tiledsl.inspect.report import data
from tiledsl.inspect.report.collect import banks_of, loops_of, rings_of, roles_of
from tiledsl.inspect.report.places import Places
from tiledsl.passes.banks.bank_report import BankReport
from tiledsl.passes.cooperation.role_report import RolesReport
from tiledsl.passes.pipelining.report import PipelineReport
from tiledsl.verdict import location


def explained(found: object) -> dict[str, Any]:
    """`found`: what ``explain`` gave."""
    places = Places()
    match found:
        case BankReport():
            part: Any = banks_of(found, places)
        case PipelineReport():
            part = {"loops": loops_of(found, places), "groups": [*found.groups]}
        case RolesReport():
            roles, rings = [*roles_of(found, places)], [*rings_of(found, places)]
            part = {"launch_registers": found.registers, "roles": roles, "rings": rings}
        case ResourceReport():
            part = {"resources": found.used, "room": found.room}
        case MapsReport():
            part = {"maps": found.maps}
        case SassReport():
            return _machine_code(found)
        case _:
            raise AssertionError(found)
    return _located(json.loads(json.dumps(part, default=data.plain)), places)


def _located(value: Any, places: Places, name: str = "") -> Any:
    """`value`, as JSON has it, with locations for what is called a place."""
    if name == "place":
        return location(places.locs[int(value)]) if value >= 0 else None
    if isinstance(value, dict):
        return {key: _located(item, places, key) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        inner = "place" if name == "places" else ""
        return [_located(item, places, inner) for item in cast(list[Any], value)]
    return value


def _machine_code(report: SassReport) -> dict[str, Any]:
    sasses = report.program.instructions
    most, where = report.max_live

    def loop(loop: Loop) -> dict[str, Any]:
        first, last = sasses[loop.body[0]], sasses[loop.body[-1]]
        return {"first": first.address, "last": last.address, "depth": loop.depth, "hottest": loop is report.hottest}

    return {
        "most_live": most,
        "most_live_at": sasses[where].address,
        "loops": [loop(each) for each in report.program.loops],
        "histogram": report.histogram,
        "arithmetic": report.arithmetic,
        "spills": [
            {"place": location(loc), "stores": stores, "loads": loads} for loc, (stores, loads) in report.spills.items()
        ],
        "unknown": [*report.unknown],
        "instructions": [
            {
                "address": sass.address,
                "text": sass.text,
                "control": str(sass.control),
                "live": report.live[place],
                "waits_for": [sasses[setter].address for setter in report.awaited[place]],
                "ptx_line": sass.ptx_line,
                "place": location(sass.loc),
            }
            for place, sass in enumerate(sasses[: report.end])
        ],
    }
