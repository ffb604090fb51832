"""The rows of an embedding layer that workers keep."""

from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.lookup.row_cache import RowCache
from tfps_plugin.variables.lookup.table import table_behind


class CachedRows:
    """One cache for each stack of a layer.

    It is one object, so that neither Keras nor a checkpoint tracks the caches.

    Attributes:
        num_rows: The user's `cache_rows`.
        max_age_steps: The user's `cache_max_age_steps`.
    """

    def __init__(
        self, num_rows: int, max_age_steps: int, dynamic: Sequence[str]
    ) -> None:
        """Has no caches yet.

        Args:
            num_rows: The most rows of each stack; 0: no caches.
            max_age_steps: The largest age of a row.
            dynamic: Names of the tables of the layer without a vocabulary.

        Raises:
            errors.InputError: If one of the numbers is not an integer of at
                least 0.
            errors.UnsupportedError: If there is a table without a vocabulary.
        """
        for name, value in (
            ("cache_rows", num_rows),
            ("cache_max_age_steps", max_age_steps),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise errors.InputError(_expected(name, value))
            if value < 0:
                raise errors.InputError(_expected(name, value))
        if num_rows and dynamic:
            raise errors.UnsupportedError(
                "A layer with cached rows cannot have tables without a "
                f"vocabulary. Expected: tables with a vocabulary_size. "
                f"Received: cache_rows={num_rows}, and the tables "
                f"{list(dynamic)}. Make a layer of their own for these."
            )
        self.num_rows = num_rows
        self.max_age_steps = max_age_steps
        # By the number of the stack. Steps that train make them when traced.
        self._caches: dict[int, RowCache] = {}

    def of_step(self, number: int, stack: Any) -> RowCache | None:
        """Returns the cache of a stack, if the code that is traced trains.

        Args:
            number: The number of the stack.
            stack: Its `keras.Variable`.
        """
        if (
            not self.num_rows
            or compat.function_graph() is None
            or not compat.is_recording()
        ):
            return None
        if number not in self._caches:
            found = table_behind(stack)
            if found is None:
                return None
            places = min(self.num_rows, int(stack.shape[0]))
            # Several threads may trace.
            self._caches.setdefault(
                number, RowCache(found[0], places, self.max_age_steps)
            )
        return self._caches[number]

    def statistics(self) -> dict[str, int | float]:
        """Returns counts of all workers, see the layer's method."""
        totals = [each.totals() for each in self._caches.values()]
        asked = sum(each for each, _ in totals)
        hits = sum(each for _, each in totals)
        return {"asked": asked, "hits": hits, "hit_rate": hits / max(1, asked)}

    def get_config(self) -> dict[str, int]:
        """Returns the user's arguments, if there are caches."""
        if not self.num_rows:
            return {}
        return {
            "cache_rows": self.num_rows,
            "cache_max_age_steps": self.max_age_steps,
        }


def _expected(name: str, value: Any) -> str:
    return (
        f"DistributedEmbedding cannot have this {name}. Expected: an integer "
        f"of at least 0. Received: {name}={value!r}. Give a number of "
        f"{'rows' if name == 'cache_rows' else 'steps'}."
    )
