"""Summary of what a parameter server holds, for messages. Pure."""

from collections.abc import Sequence

_MOST_NAMES = 3
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def describe(sizes: Sequence[tuple[str, int]]) -> str:
    """Describes the total size of variables, and the largest of them.

    Args:
        sizes: Name and bytes of each variable or shard.

    Returns:
        Text such as "3.0 GiB in 12 variables and shards; the biggest: ...".
    """
    if not sizes:
        return "no variables"
    biggest = sorted(sizes, key=lambda each: (-each[1], each[0]))[:_MOST_NAMES]
    names = ", ".join(f"{name} ({_size(size)})" for name, size in biggest)
    total = _size(sum(size for _, size in sizes))
    return f"{total} in {len(sizes)} variables and shards; the biggest: {names}"


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
