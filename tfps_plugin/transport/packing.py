"""Packing of many tensors into few, for the way to another device.

Tensors are flattened and concatenated. Sizes that are known when a step is
traced do not travel. The others travel as a header in front.
"""

import collections
import itertools
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.transport import word_pieces

# Dtypes that TensorFlow can concatenate and split. Others are rare.
_PACKABLE = frozenset(
    {
        *(tf.bfloat16, tf.float16, tf.float32, tf.float64),
        *(tf.int8, tf.int16, tf.int32, tf.int64),
        *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
        *(tf.bool, tf.complex64, tf.complex128, tf.string),
    }
)
# Dtypes that can travel as words of 4 bytes: one, two or half a number each.
WORDS = frozenset(
    {
        *(tf.int32, tf.uint32, tf.float32),
        *(tf.int64, tf.uint64, tf.float64, tf.complex64),
        *(tf.bfloat16, tf.float16),
    }
)
# Those of them to use with GPUs. TensorFlow keeps int32 in host memory there:
# floats that are cut out of it would move to the GPU one by one.
WHOLE_NUMBERS = frozenset({tf.int32, tf.int64})
# A copy of more bytes takes longer than a separate message, about 0.1 ms.
_LARGE_BYTES = 1 << 20


def is_packable(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor may be packed, by its static shape and dtype."""
    if tensor.dtype not in _PACKABLE or tensor.shape.rank is None:
        return False
    if not tensor.shape.is_fully_defined():
        return True
    num_bytes = tensor.shape.num_elements() * (tensor.dtype.size or 1)
    return bool(num_bytes < _LARGE_BYTES)


class Packing:
    """A way to pack some tensors into fewer, and to unpack them.

    Numbers of 2, 4 and 8 bytes travel as one tensor of words, whatever their
    dtypes: they are only copied, which keeps all bits. Each other dtype has a
    tensor of its own.

    There are two kinds of sizes: the lengths of flattened tensors, and single
    dimensions. Those that the receiver needs form the header in front of the
    words.
    """

    def __init__(
        self,
        tensors: Sequence[tf.Tensor],
        words: Collection[tf.DType] = WORDS,
        *,
        carrier: tf.DType | None = None,
    ) -> None:
        """Decides on the layout; makes no operation.

        Args:
            tensors: Packable tensors.
            words: The dtypes that travel as words, among those that may.
            carrier: Dtype of the words, int32 or float32; None for the dtype
                of most of them.
        """
        self._shapes = [tensor.shape for tensor in tensors]
        groups: dict[tf.DType, list[int]] = collections.defaultdict(list)
        for place, tensor in enumerate(tensors):
            groups[tensor.dtype].append(place)
        self._others = {
            dtype: places
            for dtype, places in groups.items()
            if dtype not in words
        }
        # A tensor of 4-byte numbers is a piece; others of one dtype share one.
        self._joint = {
            dtype: places
            for dtype, places in groups.items()
            if dtype in words and dtype.size != word_pieces.WORD_BYTES
        }
        self._single = [
            place
            for dtype, places in groups.items()
            if dtype in words and dtype.size == word_pieces.WORD_BYTES
            for place in places
        ]
        self._dtypes = [tensor.dtype for tensor in tensors]
        floats = [p for p in self._single if self._dtypes[p] == tf.float32]
        # The dtype of most of them: each bitcast is an operation on both ends.
        self._carrier = carrier or (
            tf.float32 if 2 * len(floats) > len(self._single) else tf.int32
        )
        self._packed = [
            *self._joint.values(),
            self._single,
            *(places for places in self._others.values() if len(places) > 1),
        ]
        # The places whose lengths, and the dimensions, that the header holds.
        self._lengths: list[int] = []
        for places in self._packed:
            # Unknown lengths come last.
            places.sort(key=lambda place: not self._is_known(place))
            unknown = [place for place in places if not self._is_known(place)]
            # A single one is the rest, unless other pieces follow.
            if len(unknown) > 1 or places in self._joint.values():
                self._lengths += unknown
        self._dimensions = [
            (place, axis)
            for places in self._packed
            for place in places
            for axis in self._dimensions_told(place)
        ]
        self._header_size = len(self._lengths) + len(self._dimensions)

    @property
    def has_words(self) -> bool:
        """True if the first parcel holds words."""
        return bool(self._header_size or self._joint or self._single)

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Packs tensors.

        Args:
            tensors: Tensors like those given to the constructor, in order.

        Returns:
            The parcels that travel.
        """
        flat = {
            place: word_pieces.flat(tensors[place])
            for places in self._packed
            for place in places
        }
        pieces = self._header(tensors, flat) if self._header_size else []
        for places in self._joint.values():
            together = [flat[place] for place in places]
            pieces.append(word_pieces.as_words(together, self._carrier))
        pieces += [self._as_carrier(flat[place]) for place in self._single]
        parcels = [word_pieces.joined(pieces)] if pieces else []
        for places in self._others.values():
            if len(places) == 1:
                parcels.append(tensors[places[0]])
            else:
                parcels.append(
                    word_pieces.joined([flat[place] for place in places])
                )
        return parcels

    def _header(
        self, tensors: Sequence[tf.Tensor], flat: Mapping[int, tf.Tensor]
    ) -> list[tf.Tensor]:
        sizes: list[tf.Tensor] = []
        # Lengths of one dtype stand together.
        for _, places in itertools.groupby(
            self._lengths, lambda place: self._dtypes[place]
        ):
            # One operation instead of one for each.
            sizes += tf.raw_ops.ShapeN(input=[flat[place] for place in places])
        sizes += [
            tf.shape(tensors[place])[axis : axis + 1]
            for place, axis in self._dimensions
        ]
        if self._carrier == tf.int32:
            return sizes
        return [self._as_carrier(word_pieces.joined(sizes))]

    def _as_carrier(self, words: tf.Tensor) -> tf.Tensor:
        return word_pieces.of_dtype(words, self._carrier)

    def unpack(self, parcels: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Unpacks tensors.

        Args:
            parcels: As `pack` returned them.
        """
        left = list(parcels)
        parts: dict[int, tf.Tensor] = {}
        header: Any = None
        if self.has_words:
            words = left.pop(0)
            if self._header_size:
                header = word_pieces.of_dtype(
                    words[: self._header_size], tf.int32
                )
                header.set_shape([self._header_size])
            parts = self._unpack_words(words, header)
        for places, parcel in zip(self._others.values(), left, strict=True):
            parts.update(self._cut(parcel, places, header))
        dimensions = {
            where: header[number]
            for number, where in enumerate(self._dimensions, len(self._lengths))
        }
        return [
            self._shaped(place, parts[place], dimensions)
            for place in range(len(self._shapes))
        ]

    def _unpack_words(
        self, words: tf.Tensor, header: Any
    ) -> dict[int, tf.Tensor]:
        lengths = []
        if header is not None:
            # Splitting the header off with the rest saves a copy of the rest.
            lengths.append(tf.constant([self._header_size]))
        for dtype, places in self._joint.items():
            total = tf.reduce_sum(self._sizes(places, header))
            lengths.append(tf.reshape(word_pieces.num_words(total, dtype), [1]))
        if self._single:
            lengths.append(self._sizes(self._single, header))
        num_pieces = len(self._joint) + len(self._single)
        pieces = word_pieces.split(
            words, lengths, num_pieces + (1 if header is not None else 0)
        )
        pieces = pieces[len(pieces) - num_pieces :]
        parts: dict[int, tf.Tensor] = {}
        for (dtype, places), piece in zip(
            self._joint.items(), pieces, strict=False
        ):
            sizes = self._sizes(places, header)
            together = word_pieces.from_words(
                piece, dtype, tf.reduce_sum(sizes)
            )
            parts.update(self._cut(together, places, header))
        for place, piece in zip(
            self._single, pieces[len(self._joint) :], strict=True
        ):
            parts[place] = word_pieces.of_dtype(piece, self._dtypes[place])
        return parts

    def _cut(
        self,
        together: tf.Tensor,
        places: Sequence[int],
        header: Any,
    ) -> dict[int, tf.Tensor]:
        if len(places) == 1:
            return {places[0]: together}
        pieces = word_pieces.split(
            together, [self._sizes(places, header)], len(places)
        )
        return dict(zip(places, pieces, strict=True))

    def _sizes(self, places: Sequence[int], header: Any) -> tf.Tensor:
        """Returns lengths, shape `(places,)`; -1 stands for the rest."""
        told = [place for place in places if place in self._lengths]
        known = tf.constant(
            [
                self._shapes[place].num_elements()
                if self._is_known(place)
                else -1
                for place in places
                if place not in told
            ],
            tf.int32,
        )
        if not told:
            return known
        first = self._lengths.index(told[0])
        return tf.concat([known, header[first : first + len(told)]], 0)

    def _is_known(self, place: int) -> bool:
        return bool(self._shapes[place].is_fully_defined())

    def _dimensions_told(self, place: int) -> list[int]:
        """Returns the axes whose sizes do not follow from a tensor's length."""
        sizes = self._shapes[place].as_list()
        unknown = [axis for axis, size in enumerate(sizes) if size is None]
        # No size follows from a length of 0.
        return unknown if len(unknown) > 1 or 0 in sizes else []

    def _shaped(
        self,
        place: int,
        part: tf.Tensor,
        dimensions: dict[tuple[int, int], tf.Tensor],
    ) -> tf.Tensor:
        shape = self._shapes[place]
        if shape.rank != 1 and any(place in places for places in self._packed):
            sizes = [
                dimensions.get((place, axis), -1) if size is None else size
                for axis, size in enumerate(shape.as_list())
            ]
            part = tf.reshape(part, sizes)
        part.set_shape(shape)
        return part
