"""Initial values of several tables stacked in one variable."""

from collections.abc import Sequence
from typing import Any

import keras

from tfps_plugin.variables.storage.tiered_storage import TieredStorage


@keras.saving.register_keras_serializable(package="tfps_plugin")
class StackedInitializer(keras.initializers.Initializer):
    """Initializes each table of a stack with its own initializer.

    Each initializer is called with its own table's shape, so the values are
    those that the table would start with if it were a variable by itself.

    Shards of a stack are filled part by part where they live, see
    `initialization.fill_shards`; only plain Keras calls this object.

    Attributes:
        initializers: The initializer of each table.
        rows: Number of rows of each table.
        storage: Where the rows are kept, a `TieredStorage`; None: in memory.
    """

    def __init__(
        self,
        initializers: Sequence[Any],
        rows: Sequence[int],
        storage: TieredStorage | None = None,
    ) -> None:
        """Joins initializers.

        Args:
            initializers: One for each table, in their order; whatever
                `keras.initializers.get` takes.
            rows: Number of rows of each table.
            storage: Where the rows are kept; None: in memory.

        Raises:
            ValueError: If the numbers of initializers and tables differ.
        """
        self.initializers = [keras.initializers.get(i) for i in initializers]
        self.rows = [int(number) for number in rows]
        self.storage = storage
        if len(self.initializers) != len(self.rows):
            raise ValueError(
                "A stack needs one initializer for each of its tables. "
                f"Received: {len(self.initializers)} initializers, "
                f"rows={self.rows}"
            )

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        """Makes the whole stack at once.

        Args:
            shape: `(sum of rows, ...)`.
            dtype: Dtype of the values.

        Returns:
            The tables, one after the other.

        Raises:
            ValueError: If `shape` has another number of rows.
        """
        self.require_rows(shape)
        return keras.ops.concatenate(
            [
                initializer((rows, *shape[1:]), dtype=dtype)
                for initializer, rows in zip(
                    self.initializers, self.rows, strict=True
                )
            ],
            axis=0,
        )

    def require_rows(self, shape: Any) -> None:
        """Raises a ValueError if `shape` is not that of this stack."""
        if not shape or shape[0] != sum(self.rows):
            raise ValueError(
                "The initial value of a stack of tables was asked for another "
                f"number of rows than the {sum(self.rows)} of its tables. "
                f"Received: shape={tuple(shape)}, rows={self.rows}"
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `from_config`."""
        return {
            "initializers": [
                keras.initializers.serialize(i) for i in self.initializers
            ],
            "rows": self.rows,
        }
