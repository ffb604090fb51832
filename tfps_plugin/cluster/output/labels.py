"""The prefix that says which task a line comes from."""

import itertools
from collections.abc import Mapping
from collections.abc import Sequence

import click

# Without red, which announces trouble, and without the extremes, which vanish
# on a terminal of the same colour.
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
    """The prefix of each task, all of one width: "ps 0     | ".

    Args:
        names: The tasks' names; each gets a colour of its own while they last.
        coloured: Whether the output understands colours.
    """
    width = max(map(len, names), default=0)
    labels = {}
    for name, colour in zip(names, itertools.cycle(_PALETTE), strict=False):
        label = f"{name:<{width}} | "
        labels[name] = click.style(label, fg=colour) if coloured else label
    return labels


def wants_colour(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Whether to colour what goes to a stream.

    `NO_COLOR`, set to anything, forbids it (https://no-color.org), as does a
    terminal that calls itself dumb; `FORCE_COLOR` asks for it elsewhere.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"
