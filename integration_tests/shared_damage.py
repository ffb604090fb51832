"""Damages files like disks and transfers do."""

import pathlib

import numpy as np

# Kinds of damage that are sure to make a file useless.
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
    """Damages a file at random; may only hit unused bytes, such as padding.

    Args:
        path: The file.
        random: Chooses the damage and the place.
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
