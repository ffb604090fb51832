"""Packing of tensors, most of which are rows of one width.

Rows and gradients of tables of one width are concatenated as they are. If they
were flattened like everything else, each would need a reshape before and after
the transfer. Also, TensorFlow splits rows without a copy if they begin at
aligned addresses.

Shape legend: D numbers in a row, M rows that travel.
"""

import collections
import math
from collections.abc import Collection
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tfps_plugin.transport import word_pieces
from tfps_plugin.transport.packing import WORDS
from tfps_plugin.transport.packing import Packing

# Dtype of the rows, and of the words that travel with them.
_DTYPE = tf.float32
# A single table saves no operation; it may save a copy.
_LEAST_TABLES = 2
# Alignment of TensorFlow's tensors in bytes.
_ALIGNMENT = 64


class Way(Protocol):
    """A way to pack some tensors into fewer, and to unpack them."""

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Packs tensors into parcels."""

    def unpack(self, parcels: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Unpacks the parcels of `pack`."""


def best(
    tensors: Sequence[tf.Tensor], words: Collection[tf.DType] = WORDS
) -> Way:
    """Chooses the way to pack some tensors.

    Args:
        tensors: Packable tensors, two or more.
        words: The dtypes that travel as words, among those that may.
    """
    width = _width(tensors) if _DTYPE in words else None
    if width is None:
        return Packing(tensors, words)
    return RowPacking(tensors, width, words)


def _width(tensors: Sequence[tf.Tensor]) -> int | None:
    """Returns the width of most tensors whose number of rows is unknown."""
    widths = collections.Counter(
        int(tensor.shape[1]) for tensor in tensors if _has_unknown_rows(tensor)
    )
    if not widths:
        return None
    # Ties go to rows that are split without a copy, and then to wider rows.
    width = max(
        widths,
        key=lambda width: (widths[width], _is_aligned(width), width),
    )
    if widths[width] < _LEAST_TABLES and not _is_aligned(width):
        return None
    return width


def _is_aligned(width: int) -> bool:
    """Returns whether each row begins at an aligned address."""
    return width * _DTYPE.size % _ALIGNMENT == 0


def _has_unknown_rows(tensor: tf.Tensor) -> bool:
    return bool(
        tensor.dtype == _DTYPE
        and tensor.shape.rank == 2
        and tensor.shape[0] is None
        and tensor.shape[1]
    )


class RowPacking:
    """Packs tensors as rows of one width.

    First come the numbers of rows that do not follow from the total; then the
    words of all other tensors, from `Packing`; then tables, and other tensors
    whose size is a multiple of the width.
    """

    def __init__(
        self,
        tensors: Sequence[tf.Tensor],
        width: int,
        words: Collection[tf.DType] = WORDS,
    ) -> None:
        """Decides on the layout; makes no operation.

        Args:
            tensors: Packable tensors; some are float32 rows of that width.
            width: Numbers in a row, D.
            words: The dtypes that travel as words, among those that may.
        """
        self._width = width
        self._shapes = [tensor.shape for tensor in tensors]
        self._unknown: list[int] = []
        self._known: list[int] = []
        self._rest: list[int] = []
        for place, tensor in enumerate(tensors):
            if _has_unknown_rows(tensor) and tensor.shape[1] == width:
                self._unknown.append(place)
            elif self._has_known_rows(tensor):
                self._known.append(place)
            else:
                self._rest.append(place)
        # Tensors whose numbers of rows travel; a single one gets the rest.
        self._told = self._unknown if len(self._unknown) > 1 else []
        self._inner = None
        if self._rest:
            rest = [tensors[place] for place in self._rest]
            self._inner = Packing(rest, words, carrier=_DTYPE)
        # None if only known when the step runs. `pack` sets it.
        self._num_words: int | None = 0

    def _has_known_rows(self, tensor: tf.Tensor) -> bool:
        if tensor.dtype != _DTYPE or not tensor.shape.is_fully_defined():
            return False
        size = tensor.shape.num_elements()
        return bool(size and size % self._width == 0)

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Packs tensors.

        Args:
            tensors: Tensors like those given to the constructor, in order.

        Returns:
            The parcels that travel.
        """
        words, others = None, []
        self._num_words = 0
        if self._inner is not None:
            others = self._inner.pack([tensors[p] for p in self._rest])
            if self._inner.has_words:
                words = others.pop(0)
                self._num_words = words.shape[0]
        shapes = []
        if self._told:
            # One operation for all. It also returns the width of each.
            shapes += tf.raw_ops.ShapeN(input=[tensors[p] for p in self._told])
        if self._num_words is None:
            shapes.append(tf.shape(words))
        head = []
        if shapes:
            head.append(
                word_pieces.of_dtype(word_pieces.joined(shapes), _DTYPE)
            )
        if words is not None and self._num_words is not None:
            head.append(words)
        pieces = []
        if head:
            pieces.append(self._as_rows(head, self._head_size))
        if self._num_words is None:
            missing = tf.zeros([-tf.size(words) % self._width], _DTYPE)
            pieces.append(self._wide(word_pieces.joined([words, missing])))
        pieces += [tensors[place] for place in self._unknown]
        pieces += [self._wide(tensors[place]) for place in self._known]
        return [tf.concat(pieces, 0), *others]

    def unpack(self, parcels: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Unpacks tensors.

        Args:
            parcels: Parcels of `pack`.

        Returns:
            The tensors in their order.
        """
        rows_MD, *others = parcels
        numbers, words = self._read_head(rows_MD)
        sizes = []
        if self._head_size:
            sizes.append(tf.constant([self._num_head_rows]))
        if self._num_words is None:
            num_words = numbers[-1]
            sizes.append(
                tf.reshape((num_words + self._width - 1) // self._width, [1])
            )
        in_front = len(sizes)
        if self._told:
            sizes.append(numbers[: 2 * len(self._told) : 2])
        else:
            sizes.append(tf.constant([-1]))
        if self._known:
            known = [self._shapes[p].num_elements() for p in self._known]
            sizes.append(tf.constant([n // self._width for n in known]))
        places = self._unknown + self._known
        pieces = word_pieces.split(rows_MD, sizes, in_front + len(places))
        if self._num_words is None:
            words = word_pieces.flat(pieces[in_front - 1])[:num_words]
        parts: dict[int, tf.Tensor] = {}
        for place, piece in zip(places, pieces[in_front:], strict=True):
            if place in self._known:
                piece = tf.reshape(piece, self._shapes[place])
            piece.set_shape(self._shapes[place])
            parts[place] = piece
        if self._inner is not None:
            if self._inner.has_words:
                others = [words, *others]
            rest = self._inner.unpack(others)
            parts.update(zip(self._rest, rest, strict=True))
        return [parts[place] for place in range(len(self._shapes))]

    def _read_head(self, rows_MD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the numbers at the front, int32, and the words after them."""
        if not self._head_size:
            return tf.zeros([0], tf.int32), tf.zeros([0], _DTYPE)
        head = word_pieces.flat(rows_MD[: self._num_head_rows])
        numbers = tf.bitcast(head[: self._num_numbers], tf.int32)
        numbers.set_shape([self._num_numbers])
        words = head[self._num_numbers : self._head_size]
        words.set_shape([self._num_words or 0])
        return numbers, words

    @property
    def _num_numbers(self) -> int:
        return 2 * len(self._told) + (self._num_words is None)

    @property
    def _head_size(self) -> int:
        return self._num_numbers + (self._num_words or 0)

    @property
    def _num_head_rows(self) -> int:
        return math.ceil(self._head_size / self._width)

    def _as_rows(self, pieces: Sequence[tf.Tensor], size: int) -> tf.Tensor:
        missing = [tf.zeros([-size % self._width], _DTYPE)]
        if size % self._width == 0:
            missing = []
        return self._wide(word_pieces.joined([*pieces, *missing]))

    def _wide(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tensor, [-1, self._width])
