"""Description of how a checkpoint and a program differ. Pure."""

from collections.abc import Iterable
from collections.abc import Sequence

# Largest number of names that a list shows.
_MAX_LINES = 20


def describe(
    missing: Sequence[str],
    unexpected: Sequence[str],
    different: Sequence[tuple[str, str, str]],
) -> str:
    """Lists the differences.

    Args:
        missing: Variables of the program that the checkpoint does not have.
        unexpected: Values of the checkpoint that the program does not have.
        different: Name of a variable, its kind in the program and in the
            checkpoint; see `kind`.

    Returns:
        The lines of a message; an empty string if there is no difference.
    """
    parts = []
    if different:
        parts += ["With another shape or dtype:"]
        parts += _lines(
            f"{name}: {ours} in the program, {theirs} in the checkpoint"
            for name, ours, theirs in different
        )
    if missing:
        parts += ["In the program, but not in the checkpoint:"]
        parts += _lines(missing)
    if unexpected:
        parts += ["In the checkpoint, but not in the program:"]
        parts += _lines(unexpected)
    return "\n".join(parts)


def _lines(names: Iterable[str]) -> list[str]:
    every = list(names)
    lines = [f"  {name}" for name in every[:_MAX_LINES]]
    if len(every) > _MAX_LINES:
        lines.append(f"  ... and {len(every) - _MAX_LINES} more")
    return lines


def kind(dtype_name: str, shape: Sequence[int]) -> str:
    """Formats dtype and shape, as in `float32[3, 4]`."""
    return f"{dtype_name}[{', '.join(map(str, shape))}]"
