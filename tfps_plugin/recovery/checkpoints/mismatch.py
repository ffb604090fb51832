"""Says in what a checkpoint and a program differ. Pure."""

from collections.abc import Iterable
from collections.abc import Sequence

# Lines of a list that a person still reads.
_MOST_LINES = 20


def describe(
    missing: Sequence[str],
    unexpected: Sequence[str],
    different: Sequence[tuple[str, str, str]],
) -> str:
    """Lists the differences.

    Args:
        missing: Variables of the program that the checkpoint does not have.
        unexpected: Values of the checkpoint that the program does not have.
        different: Variable, its kind in the program, its kind in the
            checkpoint; a kind is dtype and shape.

    Returns:
        Some lines; empty: there is no difference.
    """
    parts = []
    if different:
        parts += ["Of another shape or dtype:"]
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
    lines = [f"  {name}" for name in every[:_MOST_LINES]]
    if len(every) > _MOST_LINES:
        lines.append(f"  ... and {len(every) - _MOST_LINES} more")
    return lines


def kind(dtype_name: str, shape: Sequence[int]) -> str:
    """Dtype and shape, as in `float32[3, 4]`."""
    return f"{dtype_name}[{', '.join(map(str, shape))}]"
