"""Quantities as short texts for people. Pure."""

from collections.abc import Sequence

_UNKNOWN = "-"
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKLINE_LENGTH = 40
# From this part of a unit on, three digits of the smaller unit are a thousand.
_ROUNDS_UP = 0.9995


def number(value: float | None) -> str:
    """Returns a number with three digits: "12.3", "4,560", "7.89M"."""
    if value is None:
        return _UNKNOWN
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= _ROUNDS_UP * limit:
            return f"{value / limit:.3g}{unit}"
    if abs(value) >= 999.5 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1g}"


def size(num_bytes: float | None) -> str:
    """Returns a number of bytes: "512 B", "1.5 MB"."""
    if num_bytes is None:
        return _UNKNOWN
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= _ROUNDS_UP * limit:
            return f"{num_bytes / limit:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def share(value: float | None) -> str:
    """Returns a share from 0 to 1: "45 %"."""
    return _UNKNOWN if value is None else f"{100 * value:.0f} %"


def duration(seconds: float | None) -> str:
    """Returns a time: "45 s", "3 min 5 s", "2 h 3 min", "4 d 5 h"."""
    if seconds is None:
        return _UNKNOWN
    whole = round(max(0.0, seconds))
    minutes, seconds_left = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days} d {hours_left} h"
    if hours:
        return f"{hours} h {minutes_left} min"
    if minutes:
        return f"{minutes} min {seconds_left} s"
    return f"{whole} s"


def sparkline(values: Sequence[float]) -> str:
    """Returns the latest values as a row of blocks, from zero to the largest.

    Args:
        values: The values, oldest first; none below zero.
    """
    latest = list(values)[-_SPARKLINE_LENGTH:]
    largest = max(latest, default=0.0)
    if not largest:
        return _BLOCKS[0] * len(latest)
    return "".join(
        _BLOCKS[min(len(_BLOCKS) - 1, int(len(_BLOCKS) * each / largest))]
        for each in latest
    )
