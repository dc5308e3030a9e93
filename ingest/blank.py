"""Blank: which strings hold nothing but white space, as `str.isspace` knows it, or nothing at all.

Nearly every string is decided by its first character. The strings are UTF-8.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.ingest.compiled import compiled, inlined
from headrace.ingest.tokenizers.wordpiece.strings import Strings


def blank(strings: Strings) -> npt.NDArray[np.bool_]:
    """True for each that is; a null is one."""
    found = np.empty(len(strings), np.bool_)
    data = strings.data.view()
    data.flags.writeable = False  # one version is compiled, whoever made the buffer
    _blank(data, strings.starts, strings.ends, found)
    return found


@compiled
def _blank(data, starts, ends, found):  # type: ignore[no-untyped-def]
    """Whether data[starts[i]:ends[i]] is blank into found[i]."""
    for row in range(starts.shape[0]):
        i, end = starts[row], ends[row]
        while i < end:
            width = _space(data, i, end)
            if width == 0:
                break
            i += width
        found[row] = i >= end


@inlined
def _space(data, i, end):  # type: ignore[no-untyped-def]
    """Bytes of the white space at i; 0 where there is none."""
    first = data[i]
    if first < 0x80:
        return 1 if 9 <= first <= 13 or 28 <= first <= 32 else 0
    if first == 0xC2:
        return 2 if i + 1 < end and (data[i + 1] == 0x85 or data[i + 1] == 0xA0) else 0
    if i + 2 >= end or not 0xE1 <= first <= 0xE3:
        return 0
    second, third = data[i + 1], data[i + 2]
    if first == 0xE1:
        return 3 if second == 0x9A and third == 0x80 else 0  # U+1680
    if first == 0xE3:
        return 3 if second == 0x80 and third == 0x80 else 0  # U+3000
    if second == 0x81:
        return 3 if third == 0x9F else 0  # U+205F
    # U+2000 to U+200A, U+2028, U+2029, U+202F
    return 3 if second == 0x80 and (third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF) else 0
