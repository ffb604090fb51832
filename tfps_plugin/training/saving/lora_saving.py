"""Saves large embedding layers with LoRA, which Keras merges on the way.

A file has `table + scale * a @ b` in the place of the table. The chief has no
room for it, nor for what it is computed from: it is merged block by block.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfps_plugin._compat import keras_saving as compat
from tfps_plugin.training.saving import table_saving
from tfps_plugin.training.saving.table_saving import TableRows

_thread_local = threading.local()


def install() -> None:
    """Gives `keras.layers.Embedding` what follows."""
    embedding = keras.layers.Embedding
    embedding.save_own_variables = _save_in_blocks(embedding.save_own_variables)
    embedding.embeddings = property(_merged_later(embedding.embeddings.fget))
    compat.set_walk(_walk(compat.get_walk()))


class _SomeRows:
    """A layer with some of its rows, for Keras's own merge."""

    def __init__(self, layer: Any, rows: Any, a: Any) -> None:
        self._layer = layer
        self._embeddings = keras.ops.convert_to_tensor(rows)
        self.lora_embeddings_a = keras.ops.convert_to_tensor(a)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


@dataclasses.dataclass(frozen=True)
class MergedRows(TableRows):
    """Rows of a table, with what LoRA adds to them.

    Attributes:
        layer: The `keras.layers.Embedding`.
        merge: Its property `embeddings`, as Keras defines it.
    """

    layer: Any
    merge: Callable[[Any], Any]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the elements, which depends on Keras's version."""
        row = np.zeros((1, *self.shape[1:]), super().dtype)
        return np.dtype(self._merged(row, 0).dtype.as_numpy_dtype)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each block, and the position of its first row among these."""
        for start, rows in super().blocks():
            yield start, self._merged(rows, self.rows.start + start).numpy()

    def _merged(self, rows: np.ndarray, first: int) -> Any:
        a = table_saving.rows_of(
            self.layer.lora_embeddings_a, range(first, first + len(rows))
        )
        return self.merge(_SomeRows(self.layer, rows, a))


def _walk(
    original: Callable[[Any], Iterator[tuple[str, Any]]],
) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """Remembers when Keras only looks at what attributes there are."""

    @functools.wraps(original)
    def walk(saveable: Any) -> Iterator[tuple[str, Any]]:
        attributes = original(saveable)
        while True:
            _thread_local.is_walking = True
            try:
                attribute = next(attributes, None)
            finally:
                _thread_local.is_walking = False
            if attribute is None:
                return
            yield attribute

    return walk


def _merged_later(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The property `embeddings`, which merges at once.

    Keras asks for it when it looks for attributes to save, and to save it.
    """

    @functools.wraps(original)
    def embeddings(self: Any) -> Any:
        is_walking = getattr(_thread_local, "is_walking", False)
        takes_blocks = getattr(_thread_local, "takes_blocks", False)
        if (
            not (is_walking or takes_blocks)
            or not self.lora_enabled
            or self.quantization_mode is not None
        ):
            return original(self)
        found = table_saving.large_rows(self._embeddings)
        if found is None:
            return original(self)
        if is_walking:
            return self._embeddings
        return MergedRows(found.table, found.rows, self, original)

    return embeddings


def _save_in_blocks(original: Callable[..., None]) -> Callable[..., None]:
    """Remembers which stores take blocks."""

    @functools.wraps(original)
    def save(self: Any, store: Any) -> None:
        before = getattr(_thread_local, "takes_blocks", False)
        _thread_local.takes_blocks = isinstance(store, compat.H5IOStore)
        try:
            original(self, store)
        finally:
            _thread_local.takes_blocks = before

    return save
