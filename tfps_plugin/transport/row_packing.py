"""Many tensors as few, most of which are rows of one width.

Rows and gradients of tables of one width are laid below each other as they
are. Laid flat as all else, each would be taken for a vector before and for
rows again behind, by an operation each time; and TensorFlow cuts rows that
begin where its memory is aligned without a copy.

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

# Of the rows, and of what carries words.
_DTYPE = tf.float32
# One table alone saves no operation; it may save a copy.
_LEAST_TABLES = 2
# Where tensors of TensorFlow begin, in bytes.
_ALIGNMENT = 64


class Way(Protocol):
    """How some tensors become fewer, and themselves again."""

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What travels."""

    def unpack(self, parcels: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What was packed."""


def best(
    tensors: Sequence[tf.Tensor], words: Collection[tf.DType] = WORDS
) -> Way:
    """How some tensors travel.

    Args:
        tensors: Packable, two or more.
        words: The dtypes that travel as words, of those that may.
    """
    width = _width(tensors) if _DTYPE in words else None
    if width is None:
        return Packing(tensors, words)
    return RowPacking(tensors, width, words)


def _width(tensors: Sequence[tf.Tensor]) -> int | None:
    """The width that most tensors of unknown numbers of rows have."""
    widths = collections.Counter(
        int(tensor.shape[1]) for tensor in tensors if _has_unknown_rows(tensor)
    )
    if not widths:
        return None
    # Of as many, those that are cut without a copy, and then the wider ones.
    width = max(
        widths,
        key=lambda width: (widths[width], _is_aligned(width), width),
    )
    if widths[width] < _LEAST_TABLES and not _is_aligned(width):
        return None
    return width


def _is_aligned(width: int) -> bool:
    """Whether each row begins where the memory of a tensor may begin."""
    return width * _DTYPE.size % _ALIGNMENT == 0


def _has_unknown_rows(tensor: tf.Tensor) -> bool:
    return bool(
        tensor.dtype == _DTYPE
        and tensor.shape.rank == 2
        and tensor.shape[0] is None
        and tensor.shape[1]
    )


class RowPacking:
    """Lays tensors below each other, as rows of one width.

    In front are the numbers of rows that do not follow from the length of all;
    then the words of all that is no such rows, as `Packing` makes them; then
    tables, and what else can be taken for so many rows.
    """

    def __init__(
        self,
        tensors: Sequence[tf.Tensor],
        width: int,
        words: Collection[tf.DType] = WORDS,
    ) -> None:
        """Decides how; makes no operation.

        Args:
            tensors: Packable; some are of that width, and of float32.
            width: Of a row, D.
            words: The dtypes that travel as words, of those that may.
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
        # Whose numbers of rows travel; a single one has what is left.
        self._told = self._unknown if len(self._unknown) > 1 else []
        self._inner = None
        if self._rest:
            rest = [tensors[place] for place in self._rest]
            self._inner = Packing(rest, words, carrier=_DTYPE)
        # Of the words; None: known when the step runs. Set when packing.
        self._num_words: int | None = 0

    def _has_known_rows(self, tensor: tf.Tensor) -> bool:
        if tensor.dtype != _DTYPE or not tensor.shape.is_fully_defined():
            return False
        size = tensor.shape.num_elements()
        return bool(size and size % self._width == 0)

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What travels.

        Args:
            tensors: In the order of those that this was made with.
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
            # One operation for all. Of each the width is one number more.
            shapes += tf.raw_ops.ShapeN(input=[tensors[p] for p in self._told])
        if self._num_words is None:
            shapes.append(tf.shape(words))
        head = []
        if shapes:
            head.append(tf.bitcast(word_pieces.joined(shapes), _DTYPE))
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
        """What was packed.

        Args:
            parcels: As `pack` returned them.
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
        """The numbers in front, int32, and the words that are beside them."""
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
