"""Saves large embedding layers with LoRA, merged block by block.

A file has `table + scale * a @ b` in place of the table. Neither the sum nor
its operands fit into the chief's memory.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfps_plugin._compat import keras_lora as compat
from tfps_plugin.training.saving import block_stores
from tfps_plugin.training.saving import table_rows
from tfps_plugin.training.saving.table_rows import TableRows


@dataclasses.dataclass(frozen=True)
class MergedRows(TableRows):
    """Rows of a table, merged with LoRA.

    Attributes:
        layer: The `keras.layers.Embedding`.
    """

    layer: Any

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the elements, which depends on Keras's version."""
        row = np.zeros((1, *self.shape[1:]), super().dtype)
        return np.dtype(self._merged(row, 0).dtype.as_numpy_dtype)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields each block with the position of its first row."""
        for start, rows in super().blocks():
            yield (
                start,
                self._merged(rows, self.pieces[0].start + start).numpy(),
            )

    def _merged(self, rows: np.ndarray, first: int) -> Any:
        a = table_rows.rows_of(
            self.layer.lora_embeddings_a, [range(first, first + len(rows))]
        )
        return compat.merged_embeddings(self.layer, rows, a)


def merged_later(original: property) -> property:
    """Returns the `embeddings` of a layer, which Keras saves merged.

    While a layer is saved or loaded in blocks, it gives rows that are merged
    when they are written. Keras also reads it to search all attributes for
    more to save or load.
    """
    merged: Any = original.fget

    @functools.wraps(merged)
    def embeddings(self: Any) -> Any:
        rows = _to_merge(self) if block_stores.is_in_progress(self) else None
        return merged(self) if rows is None else rows

    return property(embeddings)


def _to_merge(layer: Any) -> MergedRows | None:
    """Returns the rows of a large table with LoRA, or None."""
    table = compat.table_with_lora(layer)
    rows = None if table is None else table_rows.large_rows(table)
    return None if rows is None else MergedRows(rows.table, rows.pieces, layer)
