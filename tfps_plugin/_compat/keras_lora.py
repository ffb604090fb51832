"""Private Keras API: embedding layers with LoRA.

Checked against Keras 3.12 to 3.15.
"""

from typing import Any

import keras
import numpy as np


class _SomeRows:
    """A layer with some of its rows, for Keras's own merge."""

    def __init__(self, layer: Any, rows: Any, a: Any) -> None:
        self._layer = layer
        self._embeddings = keras.ops.convert_to_tensor(rows)
        self.lora_embeddings_a = keras.ops.convert_to_tensor(a)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def table_with_lora(layer: Any) -> Any:
    """Returns the table of an embedding layer that LoRA adds to, or None.

    A quantized layer merges in another way, which is correct as it is.
    """
    if not getattr(layer, "lora_enabled", False) or (
        layer.quantization_mode is not None
    ):
        return None
    return layer._embeddings


def merged_embeddings(layer: Any, rows: np.ndarray, a: np.ndarray) -> Any:
    """Merges some rows of a layer's table, as Keras merges all of them.

    Args:
        layer: A `keras.layers.Embedding`.
        rows: Rows of the table.
        a: The same rows of `lora_embeddings_a`.
    """
    merge = keras.layers.Embedding.embeddings.fget
    return merge(_SomeRows(layer, rows, a))
