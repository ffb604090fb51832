"""Prefixes that name the task of a line."""

import itertools
from collections.abc import Mapping
from collections.abc import Sequence

import click

# Without red, which suggests an error, and without extremes, which are
# invisible on a terminal of the same colour.
_PALETTE = (
    "cyan",
    "green",
    "yellow",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_yellow",
    "bright_magenta",
    "bright_blue",
)


def make_labels(names: Sequence[str], *, coloured: bool) -> dict[str, str]:
    """Returns the prefix of each task, all of one width: "ps 0     | ".

    Args:
        names: The tasks' names; each gets its own colour while there are any.
        coloured: Whether the output supports colours.
    """
    width = max(map(len, names), default=0)
    labels = {}
    for name, colour in zip(names, itertools.cycle(_PALETTE), strict=False):
        label = f"{name:<{width}} | "
        labels[name] = click.style(label, fg=colour) if coloured else label
    return labels


def wants_colour(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Returns whether to use colours in a stream.

    Any value of `NO_COLOR` forbids them (https://no-color.org), as does a
    terminal of type "dumb"; `FORCE_COLOR` requests them for other streams.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"
