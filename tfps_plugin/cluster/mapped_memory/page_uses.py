"""Uses of the pages of a variable. Pure.

Shape legend: P pages of the variable, N rows, M pages that are chosen.
"""

import numpy as np

# Lookups after which a use counts half as much.
_HALF_LIFE = 10_000
# Pages that the last lookups have used leave after all others.
_LOOKUPS_IN_FLIGHT = 3
# More than a page that every lookup uses can have.
_MOST_USES = 2.0 * _HALF_LIFE


class PageUses:
    """Numbers of uses of pages, and which are believed in memory.

    Old uses count less and less, as in TinyLFU (Einziger et al., 2017). The
    time of the last use would not do: a page that a single rare row has brought
    in would push out one of frequent rows.

    The caller lets only one method run at a time.
    """

    def __init__(self, num_pages: int, page_bytes: int) -> None:
        """Begins with pages that nobody has used.

        Args:
            num_pages: Number of pages.
            page_bytes: Size of a page.
        """
        self._page_bytes = page_bytes
        self._uses_P = np.zeros(num_pages, np.float32)
        self._used_at_P = np.zeros(num_pages, np.int64)
        self._are_present_P = np.zeros(num_pages, bool)

    def pages_of(
        self, rows_N: np.ndarray, row_bytes: int, shift: int
    ) -> np.ndarray:
        """Returns the distinct pages that some rows are in.

        Args:
            rows_N: Row numbers.
            row_bytes: Size of a row.
            shift: Byte of the first page at which row 0 begins; below zero if
                it begins before that page.
        """
        first_N = rows_N.astype(np.int64) * row_bytes + shift
        last = (first_N + row_bytes - 1) // self._page_bytes
        first = first_N // self._page_bytes
        pages = [first, last]
        # A long row has pages between its first and its last one.
        pages += [
            np.minimum(first + between, last)
            for between in range(1, (row_bytes - 1) // self._page_bytes + 1)
        ]
        found = np.unique(np.concatenate(pages))
        return found[(found >= 0) & (found < len(self._used_at_P))]

    def use(self, pages_M: np.ndarray, now: int) -> np.ndarray:
        """Notes that pages are used; returns those that may not be there.

        Args:
            pages_M: Distinct pages.
            now: Time, above zero.
        """
        missing = pages_M[~self._are_present_P[pages_M]]
        self._uses_P[pages_M] = self._uses(pages_M, now) + 1
        self._used_at_P[pages_M] = now
        self._are_present_P[missing] = True
        return missing

    @property
    def present_M(self) -> np.ndarray:
        """The pages that are believed in memory, in order."""
        return np.flatnonzero(self._are_present_P)

    def found(self, are_resident_P: np.ndarray) -> None:
        """Learns which pages are in memory.

        Args:
            are_resident_P: Whether each page is.
        """
        self._are_present_P[:] = are_resident_P

    def give_up(self, num_pages: int, now: int) -> np.ndarray:
        """Chooses the pages that were used least, of those in memory.

        Args:
            num_pages: The number of pages to choose.
            now: Time of the latest use.

        Returns:
            The pages, in order. They do not count as present any more.
        """
        present_M = self.present_M
        num_pages = min(num_pages, len(present_M))
        if num_pages < 1:
            return present_M[:0]
        uses_M = self._uses(present_M, now)
        # The steps of these lookups may not have ended.
        are_needed_M = self._used_at_P[present_M] > now - _LOOKUPS_IN_FLIGHT
        uses_M = uses_M + are_needed_M * _MOST_USES
        least = np.argpartition(uses_M, num_pages - 1)
        chosen_M = np.sort(present_M[least[:num_pages]])
        self._are_present_P[chosen_M] = False
        return chosen_M

    def are_present(self, pages_M: np.ndarray) -> np.ndarray:
        """Returns whether pages are believed in memory."""
        are_present_M: np.ndarray = self._are_present_P[pages_M]
        return are_present_M

    def _uses(self, pages_M: np.ndarray, now: int) -> np.ndarray:
        """Returns the uses of some pages, as they count now."""
        ages_M = (now - self._used_at_P[pages_M]) / _HALF_LIFE
        return self._uses_P[pages_M] * np.exp2(-ages_M).astype(np.float32)


def runs(pages_M: np.ndarray, most_between: int = 0) -> np.ndarray:
    """Returns the first page and the number of pages of each run.

    Args:
        pages_M: Distinct pages, in order.
        most_between: Number of other pages that may be between two pages of a
            run.

    Returns:
        Shape `(R, 2)`, int64.
    """
    pages_M = pages_M.astype(np.int64)
    are_first = np.diff(pages_M, prepend=-2 - most_between) > 1 + most_between
    are_last = np.append(are_first[1:], True)[: len(pages_M)]
    first_R = pages_M[are_first]
    return np.stack([first_R, pages_M[are_last] - first_R + 1], 1)
