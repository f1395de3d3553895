"""A Chromium that tests drive. TILEDSL_CHROMIUM names another than the one in the path.

python -m tests.browser.chromium        exits with 1 if there is none
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def installed() -> str:
    """Its file; "" if there is none."""
    return os.environ.get("TILEDSL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser."""
    from playwright.sync_api import sync_playwright

    found = installed()
    assert found, f"none of {', '.join(NAMES)} is installed: make browser installs one"
    with sync_playwright() as playwright:
        # Without a sandbox, which needs rights that containers do not have: it opens files of our own alone.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


if __name__ == "__main__":
    raise SystemExit(not installed())
