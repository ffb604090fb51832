"""Initial value of a table whose rows stay together in blocks."""

from typing import Any

import keras

from tfps_plugin.variables.storage.tiered_storage import TieredStorage


class BlocksOfRows(keras.initializers.Zeros):
    """Zeros, for a variable whose shards have whole blocks of rows.

    Attributes:
        rows_per_block: Rows of a block.
        storage: Where they are kept, a `TieredStorage`; None: in memory.
    """

    def __init__(
        self, rows_per_block: int, storage: TieredStorage | None = None
    ) -> None:
        """Takes the number of rows of a block, and where they are kept."""
        self.rows_per_block = rows_per_block
        self.storage = storage

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `from_config`."""
        return {"rows_per_block": self.rows_per_block}
