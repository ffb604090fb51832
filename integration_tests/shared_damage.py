"""Does to files what disks and transfers do."""

import pathlib

import numpy as np

# What happens to a file of which one can say beforehand that it is no good.
KINDS = ("cut off", "flipped", "gone")


def damage(path: pathlib.Path, kind: str) -> None:
    """Makes a data file useless.

    Args:
        path: The file.
        kind: One of `KINDS`.
    """
    content = bytearray(path.read_bytes())
    if kind == "gone":
        path.unlink()
    elif kind == "cut off":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 3] ^= 1
        path.write_bytes(content)


def damage_somehow(path: pathlib.Path, random: np.random.Generator) -> None:
    """Does anything to a file; what nobody reads may be hit, such as padding.

    Args:
        path: The file.
        random: Says what, and where.
    """
    content = bytearray(path.read_bytes())
    place = int(random.integers(len(content)))
    kind = random.integers(5)
    if kind == 0:
        path.unlink()
        return
    if kind == 1:
        content = content[:place]
    elif kind == 2:
        content[place] ^= 1 << int(random.integers(8))
    elif kind == 3:
        size = int(random.integers(1, 5000))
        content[place : place + size] = bytes(len(content[place:][:size]))
    else:
        content[place:place] = random.bytes(int(random.integers(1, 100)))
    path.write_bytes(content)
