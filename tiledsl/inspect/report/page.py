"""The report as one HTML file: page.html with its style (page.css), its script (`SCRIPTS`) and the data in it.

Names and texts of the user are in two places only: the title, where they are escaped, and the data, which is JSON in a
script element that no browser runs. page.js makes text nodes of it and no markup. A policy allows the one script, by
its hash, and no connection.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from html import escape
from pathlib import Path
from string import Template

from tiledsl.inspect.report.data import Report

FOLDER = Path(__file__).parent

SCRIPTS = ("links.js", "shared.js", "fragments.js", "timeline.js", "roofline.js", "page.js")
"""The last one draws the page when it is loaded."""


def page(report: Report) -> str:
    """The text of the file, whose encoding is UTF-8."""
    html, style = (FOLDER.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.css"))
    script = script_of_page()
    return Template(html).substitute(
        # A name may hold what UTF-8 has no bytes for.
        title=escape(f"{report.kernel.label} for {report.kernel.arch}").encode("ascii", "xmlcharrefreplace").decode(),
        style=style,
        script=script,
        hash=digest(script),
        # "<" would end the element, or begin a comment in it.
        data=report.to_json().replace("<", "\\u003c"),
    )


def script_of_page() -> str:
    return "".join(FOLDER.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)


def digest(script: str) -> str:
    """As a policy names a script."""
    return b64encode(hashlib.sha256(script.encode()).digest()).decode()
