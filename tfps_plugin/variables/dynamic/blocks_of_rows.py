"""Initial value of a table whose rows stay together in blocks."""

from typing import Any

import keras


class BlocksOfRows(keras.initializers.Zeros):
    """Zeros, for a variable whose shards have whole blocks of rows.

    Attributes:
        rows_per_block: Rows of a block.
    """

    def __init__(self, rows_per_block: int) -> None:
        """Takes the number of rows of a block."""
        self.rows_per_block = rows_per_block

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `from_config`."""
        return {"rows_per_block": self.rows_per_block}
