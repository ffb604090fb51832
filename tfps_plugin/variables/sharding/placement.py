"""Placement of variables on parameter servers. Pure: no TensorFlow."""

import threading
from collections.abc import Sequence


class BytePlacement:
    """Keeps parameter servers balanced by the bytes they hold.

    Every piece goes to the ps that holds the fewest bytes; ties go to the
    lowest index. Counting variables instead, as round robin does, overloads
    one ps as soon as sizes differ.

    Guarantees: safe to call from several threads; pieces placed together are
    spread over as many ps as there are.
    Guarded by `_lock`: `_bytes`.
    """

    def __init__(self, num_ps: int) -> None:
        """Starts with empty parameter servers."""
        self._lock = threading.Lock()
        self._bytes = [0] * num_ps

    @property
    def bytes_per_ps(self) -> tuple[int, ...]:
        """Bytes placed on each ps so far."""
        with self._lock:
            return tuple(self._bytes)

    def place(self, num_bytes: int) -> int:
        """Picks the ps for one piece of `num_bytes` bytes."""
        return self.place_all([num_bytes])[0]

    def place_all(self, piece_bytes: Sequence[int]) -> list[int]:
        """Picks a ps for each of several pieces of one variable.

        Pieces of one variable go to different ps as long as there are any, so
        that all ps share the work of reading the whole.

        Args:
            piece_bytes: Size of each piece, in bytes.

        Returns:
            The index of the ps of each piece.
        """
        with self._lock:
            chosen: list[int] = []
            pieces_on = [0] * len(self._bytes)
            for num_bytes in piece_bytes:
                ps = min(
                    range(len(self._bytes)),
                    key=lambda i: (pieces_on[i], self._bytes[i], i),
                )
                pieces_on[ps] += 1
                self._bytes[ps] += num_bytes
                chosen.append(ps)
            return chosen

    def add(self, ps: int, num_bytes: int) -> None:
        """Counts bytes that were placed by rule, such as a slot beside its
        variable."""
        with self._lock:
            self._bytes[ps] += num_bytes
