"""Strings as ids: the hashes that `tfps.layers.DynamicEmbedding` computes."""

from collections.abc import Sequence

import numpy as np

# SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012),
# with the key of `variables/dynamic/ids/string_ids.py`.
_KEY = (0x7466_7073, 0x6964_7321)
_NUM_IDS = np.uint64(2**63 - 1)
_BLOCK_BYTES = 8

_INITIAL = (
    0x736F6D6570736575,
    0x646F72616E646F6D,
    0x6C7967656E657261,
    0x7465646279746573,
)

_Words = list[np.ndarray]


def ids_of(strings: Sequence[str | bytes] | np.ndarray) -> np.ndarray:
    """Returns the ids of strings.

    Args:
        strings: Strings, or bytes in UTF-8; a flat sequence or array.

    Returns:
        int64, shape `(N,)`.

    Raises:
        TypeError: If there is something else among them.
    """
    encoded = [_bytes(string) for string in strings]
    ids = np.empty(len(encoded), np.int64)
    # Strings of the same number of blocks are hashed together.
    blocks = np.array([len(s) // _BLOCK_BYTES + 1 for s in encoded], int)
    for num_blocks in np.unique(blocks):
        places = np.flatnonzero(blocks == num_blocks)
        padded = b"".join(
            _padded(encoded[place], int(num_blocks)) for place in places
        )
        words = np.frombuffer(padded, "<u8").reshape(-1, num_blocks)
        ids[places] = (_hashes(words) % _NUM_IDS).astype(np.int64)
    return ids


def _bytes(string: object) -> bytes:
    if isinstance(string, str):
        return string.encode()
    if isinstance(string, bytes):
        return string
    raise TypeError(
        "Ids must be all integers or all strings. Received: "
        f"{type(string).__name__} {string!r}"
    )


def _padded(string: bytes, num_blocks: int) -> bytes:
    """Returns whole blocks; the last byte is the length of the string."""
    ending = bytes([len(string) % 256])
    return string.ljust(num_blocks * _BLOCK_BYTES - 1, b"\0") + ending


def _hashes(words_NB: np.ndarray) -> np.ndarray:
    key = [_KEY[0], _KEY[1], _KEY[0], _KEY[1]]
    v = [
        np.full(len(words_NB), initial ^ part, np.uint64)
        for initial, part in zip(_INITIAL, key, strict=True)
    ]
    for word in words_NB.T.astype(np.uint64):
        v[3] = v[3] ^ word
        _rounds(v, 2)
        v[0] = v[0] ^ word
    v[2] = v[2] ^ np.uint64(0xFF)
    _rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: _Words, number: int) -> None:
    for _ in range(number):
        v[0] = v[0] + v[1]
        v[2] = v[2] + v[3]
        v[1] = _rotated(v[1], 13) ^ v[0]
        v[3] = _rotated(v[3], 16) ^ v[2]
        v[0] = _rotated(v[0], 32)
        v[2] = v[2] + v[1]
        v[0] = v[0] + v[3]
        v[1] = _rotated(v[1], 17) ^ v[2]
        v[3] = _rotated(v[3], 21) ^ v[0]
        v[2] = _rotated(v[2], 32)


def _rotated(words: np.ndarray, bits: int) -> np.ndarray:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
