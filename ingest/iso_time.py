"""Times in the usual form of ISO 8601, from bytes: `2026-11-23T08:00:00[.123[456]][Z|+08:00]`, `T` or a space."""

from __future__ import annotations

from headrace.ingest.compiled import inlined

_SECONDS = 19  # characters as far as the seconds
_MILLIS, _MICROS = 4, 7  # characters of a fraction, its point included
_ZONE = 6


@inlined
def iso_ms(data, begin, end):  # type: ignore[no-untyped-def]
    """Whether data[begin:end] is certainly such a time, and its milliseconds since 1970; without a zone: UTC."""
    if end - begin < _SECONDS or data[begin + 4] != ord("-") or data[begin + 7] != ord("-"):
        return False, 0
    if (data[begin + 10] != ord("T") and data[begin + 10] != ord(" ")) or data[begin + 13] != ord(":"):
        return False, 0
    year, month, day = _digits(data, begin, 4), _digits(data, begin + 5, 2), _digits(data, begin + 8, 2)
    hour, minute, second = _digits(data, begin + 11, 2), _digits(data, begin + 14, 2), _digits(data, begin + 17, 2)
    if data[begin + 16] != ord(":") or min(hour, minute, second) < 0 or hour > 23 or minute > 59 or second > 59:
        return False, 0
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= _days(year, month):
        return False, 0
    i = begin + _SECONDS
    millis = 0
    if i < end and data[i] == ord("."):
        if end - i >= _MICROS and _digits(data, i + 1, _MICROS - 1) >= 0:
            millis, i = _digits(data, i + 1, 3), i + _MICROS
        elif end - i >= _MILLIS and _digits(data, i + 1, _MILLIS - 1) >= 0:
            millis, i = _digits(data, i + 1, 3), i + _MILLIS
        else:
            return False, 0
    minutes_east = 0
    if end - i == _ZONE and (data[i] == ord("+") or data[i] == ord("-")) and data[i + 3] == ord(":"):
        hours, minutes = _digits(data, i + 1, 2), _digits(data, i + 4, 2)
        if min(hours, minutes) < 0 or hours > 23 or minutes > 59:
            return False, 0
        minutes_east = (hours * 60 + minutes) * (1 if data[i] == ord("+") else -1)
    elif not (i == end or (end - i == 1 and data[i] == ord("Z"))):
        return False, 0
    seconds = ((_day_number(year, month, day) * 24 + hour) * 60 + minute - minutes_east) * 60 + second
    return True, seconds * 1000 + millis


@inlined
def _digits(data, begin, count):  # type: ignore[no-untyped-def]
    """A number of so many digits, or -1."""
    number = 0
    for i in range(begin, begin + count):
        if not 48 <= data[i] <= 57:
            return -1
        number = number * 10 + (data[i] - 48)
    return number


@inlined
def _days(year, month):  # type: ignore[no-untyped-def]
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@inlined
def _day_number(year, month, day):  # type: ignore[no-untyped-def]
    """Days since 1970-01-01 in the Gregorian calendar: years begin in March, so that leap days are the last of one."""
    if month < 3:
        year -= 1
        month += 12
    leaps = year // 4 - year // 100 + year // 400
    return year * 365 + leaps + (153 * (month - 3) + 2) // 5 + day - 719_469
