"""Two reports side by side in one HTML file, with what differs above them: beside.html, beside.js and two pages in it.

Each page is in a frame of its own, made of a text in the file. The policy allows the scripts of both, by their hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from string import Template

from tiledsl.inspect.compare import Difference
from tiledsl.inspect.report.data import Report
from tiledsl.inspect.report.page import FOLDER, digest, page, script_of_page


def beside(
    reports: Sequence[Report],
    titles: Sequence[str],
    at: Sequence[str],
    found: Sequence[Difference],
    resources: Mapping[str, tuple[str, str]],
) -> str:
    """at: what each of the pages shows first, an address in it, or "". resources: those that differ."""
    html, script = (FOLDER.joinpath(name).read_text(encoding="utf-8") for name in ("beside.html", "beside.js"))
    data = {
        "titles": titles,
        "at": at,
        "resources": [[name, *values] for name, values in resources.items()],
        "parts": [[d.part, d.added, d.removed, d.lines] for d in found],
        "pages": [*map(page, reports)],
    }
    return Template(html).substitute(
        title=escape(" | ".join(titles)).encode("ascii", "xmlcharrefreplace").decode(),
        script=script,
        hashes=f"'sha256-{digest(script)}' 'sha256-{digest(script_of_page())}'",
        data=json.dumps(data).replace("<", "\\u003c"),
    )
