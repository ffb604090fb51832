"""Storage of variables by their paths: an option of a strategy. Pure."""

import difflib
import logging
import re
import threading
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

_logger = logging.getLogger("tfps_plugin.variables")

_MOST_NEAR_PATHS = 3


class StorageByPath:
    """The option `table_storage` of a strategy.

    A key that is the path of a variable is that variable's. Any other key is a
    regular expression that is searched in the path.

    Threading: any thread. Guarded by `_lock`: what was seen so far.
    """

    def __init__(self, table_storage: Any = None) -> None:
        """Takes the option.

        Args:
            table_storage: A mapping from keys to `TieredStorage`; None: empty.

        Raises:
            TypeError: If it is no such mapping.
            ValueError: If a key is no regular expression.
        """
        self._storages: dict[str, TieredStorage] = _checked(table_storage)
        self._lock = threading.Lock()
        self._unused = set(self._storages)
        # Paths that no key is for, of variables that a key could be for.
        self._other_paths: list[str] = []
        self._has_warned = False

    def of(
        self, path: str, shape: Sequence[int], *, has_numbers: bool = True
    ) -> TieredStorage | None:
        """Returns where the rows of a new variable are kept; None: in memory.

        Args:
            path: Its path.
            shape: Its shape.
            has_numbers: Whether its elements are numbers.

        Raises:
            VariableCreationError: If several keys are for it, or if it cannot
                be on a disk.
        """
        if not self._storages:
            return None
        keys = [path] if path in self._storages else self._found_in(path)
        if len(keys) > 1:
            raise errors.VariableCreationError(
                f"Several keys of table_storage are for the variable {path!r}. "
                f"Expected: one, or its whole path. Received: {keys}. Make the "
                "regular expressions longer."
            )
        with self._lock:
            self._unused -= {*keys}
            if not keys and len(shape) > 1 and path not in self._other_paths:
                self._other_paths.append(path)
        if not keys:
            return None
        if not shape or not has_numbers:
            raise errors.VariableCreationError(
                f"The variable {path!r} cannot be on the disks of parameter "
                "servers: it has no rows of numbers. Expected: a table. "
                f"Received: table_storage key {keys[0]!r}, shape="
                f"{tuple(shape)}. Make the key longer, so that it is for the "
                "table alone, such as 'items/embeddings$'."
            )
        return self._storages[keys[0]]

    def _found_in(self, path: str) -> list[str]:
        return [key for key in self._storages if re.search(key, path)]

    def tell_of_unused(self) -> None:
        """Warns, once, of keys that are for no variable so far."""
        with self._lock:
            if self._has_warned or not self._storages:
                return
            self._has_warned = True
            unused, others = sorted(self._unused), list(self._other_paths)
        for key in unused:
            near = difflib.get_close_matches(key, others, _MOST_NEAR_PATHS, 0.3)
            _logger.warning(
                "table_storage has the key %r, which is in the path of no "
                "variable, and training begins: no table is on disk for it. "
                "Expected: a regular expression that is found in the path of a "
                "table%s.",
                key,
                f"; near ones are {near}" if near else "",
            )


def _checked(table_storage: Any) -> dict[str, TieredStorage]:
    """Returns the option as a dictionary."""
    if table_storage is None:
        return {}
    if not isinstance(table_storage, Mapping):
        raise TypeError(
            "table_storage must be a mapping from regular expressions to "
            f"tfps.TieredStorage. Received: table_storage={table_storage!r}"
        )
    for key, storage in table_storage.items():
        if not isinstance(key, str) or not isinstance(storage, TieredStorage):
            raise TypeError(
                "table_storage must map strings, which are found in paths of "
                f"variables, to tfps.TieredStorage. Received: {key!r}: "
                f"{storage!r}"
            )
        try:
            re.compile(key)
        except re.error as error:
            raise ValueError(
                "A key of table_storage must be a regular expression, such as "
                f"'items/embeddings'. Received: {key!r}, and Python says: "
                f"{error}"
            ) from None
        if not key:
            raise ValueError(
                "A key of table_storage must not be empty: it would be found "
                "in every path. Received: table_storage with the key ''. Name "
                "a table, such as 'items/embeddings'."
            )
    return dict(table_storage)
