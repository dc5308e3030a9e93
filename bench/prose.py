"""English that is always at hand: the help texts of Python's own language reference, in the standard library."""

from __future__ import annotations

import re
from functools import cache


@cache
def english_words() -> tuple[str, ...]:
    """Some 60 000 words in the order of running text."""
    from pydoc_data.topics import topics

    return tuple(re.findall(r"[A-Za-z]+", "\n".join(topics.values())))
