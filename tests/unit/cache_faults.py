"""What tests of the on-disk cache share: an entry, calls of the system that fail, and warnings counted."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

ENTRY = b"text" + bytes(range(256))


def failing(code: int) -> Callable[..., Any]:
    """A call of the system that gives this errno."""

    def fail(*args: Any, **settings: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@contextmanager
def one_warning(match: str) -> Generator[None]:
    """The block warns once, and so."""

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(w.message) for w in caught]
    assert len(texts) == 1 and re.search(match, texts[0]), texts
