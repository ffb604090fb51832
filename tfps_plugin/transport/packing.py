"""Many tensors as few, for the way from one device to another.

Tensors are laid end to end. Sizes that are known when a step is traced do not
travel. Those that are not travel as numbers, in front.
"""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# What TensorFlow can lay end to end and cut again; of others there are few.
_PACKABLE = frozenset(
    {
        *(tf.bfloat16, tf.float16, tf.float32, tf.float64),
        *(tf.int8, tf.int16, tf.int32, tf.int64),
        *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
        *(tf.bool, tf.complex64, tf.complex128, tf.string),
    }
)
# Of these, each is one number of 4 bytes or two.
_WORDS = frozenset(
    {
        *(tf.float32, tf.int32, tf.uint32),
        *(tf.float64, tf.int64, tf.uint64),
    }
)
# To copy more takes longer than a message of its own does, about 0.1 ms.
_LARGE_BYTES = 1 << 20


def is_packable(tensor: tf.Tensor) -> bool:
    """Whether a tensor may be packed, by what is known when it is traced."""
    if tensor.dtype not in _PACKABLE or tensor.shape.rank is None:
        return False
    if not tensor.shape.is_fully_defined():
        return True
    num_bytes = tensor.shape.num_elements() * (tensor.dtype.size or 1)
    return bool(num_bytes < _LARGE_BYTES)


class Packing:
    """How some tensors become fewer, and themselves again.

    Numbers of 4 and 8 bytes travel as one tensor, whatever their dtypes: bits
    are not looked at. Of any other dtype there is one each.

    Sizes come in two kinds: the lengths of tensors laid flat, and single
    dimensions. Those that the receiver needs are the header.
    """

    def __init__(self, tensors: Sequence[tf.Tensor]) -> None:
        """Decides how; makes no operation.

        Args:
            tensors: Packable, two or more.
        """
        self._shapes = [tensor.shape for tensor in tensors]
        groups: dict[tf.DType, list[int]] = collections.defaultdict(list)
        for place, tensor in enumerate(tensors):
            groups[tensor.dtype].append(place)
        words = [dtype for dtype in groups if dtype in _WORDS]
        # What others travel as; its own tensors are not copied twice.
        self._carrier = tf.float32 if tf.float32 in groups else tf.int32
        words.sort(key=lambda dtype: dtype == self._carrier)
        self._words = {dtype: groups.pop(dtype) for dtype in words}
        self._others = groups
        laid = {**self._words, **self._others}
        if len(tensors) > 1 and sum(map(len, self._words.values())) == 1:
            # Alone it need not be laid flat.
            self._others = laid
            self._words = {}
        # By dtype, whose lengths are not known; and whose dimensions.
        self._lengths: dict[tf.DType, list[int]] = {}
        self._dimensions: list[tuple[int, int]] = []
        for dtype, places in laid.items():
            if not self._is_laid_flat(dtype):
                continue
            # Lengths that the receiver is told come last.
            places.sort(key=lambda place: not self._is_known(place))
            unknown = [place for place in places if not self._is_known(place)]
            # A single one is what is left.
            is_rest = len(unknown) == 1 and (
                dtype in self._others or dtype == self._carrier
            )
            self._lengths[dtype] = [] if is_rest else unknown
            self._dimensions += [
                (place, axis)
                for place in unknown
                for axis in self._dimensions_told(place)
            ]
        self._header_size = len(self._dimensions) + sum(
            len(places) for places in self._lengths.values()
        )

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What travels.

        Args:
            tensors: In the order of those that this was made with.
        """
        parcels = []
        header = self._header(tensors)
        parts = [] if header is None else [_as_words(header, self._carrier)]
        for dtype, places in self._words.items():
            laid = [_flat(tensors[place]) for place in places]
            if dtype != self._carrier:
                together = laid[0] if len(laid) == 1 else tf.concat(laid, 0)
                laid = [_as_words(together, self._carrier)]
            parts += laid
        if parts:
            parcels.append(parts[0] if len(parts) == 1 else tf.concat(parts, 0))
        for places in self._others.values():
            some = [tensors[place] for place in places]
            parcels.append(
                some[0]
                if len(some) == 1
                else tf.concat([_flat(tensor) for tensor in some], 0)
            )
        return parcels

    def unpack(self, parcels: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What was packed.

        Args:
            parcels: As `pack` returned them.
        """
        left = list(parcels)
        parts: dict[int, tf.Tensor] = {}
        sizes = _Sizes(None)
        if self._words or self._header_size:
            words = left.pop(0)
            if self._header_size:
                header = words[: self._header_size] if self._words else words
                header = _from_words(header, tf.int32)
                header.set_shape([self._header_size])
                sizes = _Sizes(header)
            if self._words:
                parts = self._unpack_words(words, sizes)
        for (dtype, places), parcel in zip(
            self._others.items(), left, strict=True
        ):
            if len(places) == 1:
                parts[places[0]] = parcel
            else:
                lengths = self._split_sizes(dtype, places, sizes)
                parts.update(_split(parcel, places, lengths))
        told = {where: sizes.next(1)[0] for where in self._dimensions}
        return [
            self._shaped(place, parts[place], told)
            for place in range(len(self._shapes))
        ]

    def _unpack_words(
        self, words: tf.Tensor, sizes: "_Sizes"
    ) -> dict[int, tf.Tensor]:
        """The tensors of the parcel that carries several dtypes."""
        # For each piece of the parcel, how many words it has.
        pieces = [tf.constant([self._header_size])] if self._header_size else []
        guests = []
        for dtype, places in self._words.items():
            lengths = self._split_sizes(dtype, places, sizes)
            if dtype == self._carrier:
                pieces.append(lengths)
            else:
                guests.append((dtype, places, lengths))
                each = dtype.size // self._carrier.size
                pieces.append(tf.reshape(tf.reduce_sum(lengths) * each, [1]))
        own = self._words.get(self._carrier, [])
        num_pieces = len(guests) + len(own)
        split = [words]
        if self._header_size or num_pieces > 1:
            # Not without the header first: that would copy all of it.
            num_split = num_pieces + bool(self._header_size)
            split = tf.split(words, _joined(pieces), num=num_split)
            split = split[-num_pieces:]
        parts: dict[int, tf.Tensor] = {}
        for (dtype, places, lengths), piece in zip(guests, split, strict=False):
            parts.update(_split(_from_words(piece, dtype), places, lengths))
        parts.update(zip(own, split[len(guests) :], strict=True))
        return parts

    def _is_laid_flat(self, dtype: tf.DType) -> bool:
        return dtype in self._words or len(self._others[dtype]) > 1

    def _is_known(self, place: int) -> bool:
        return bool(self._shapes[place].is_fully_defined())

    def _dimensions_told(self, place: int) -> list[int]:
        """The axes whose sizes do not follow from a tensor's length."""
        sizes = self._shapes[place].as_list()
        unknown = [axis for axis, size in enumerate(sizes) if size is None]
        # Of nothing, no size follows.
        return unknown if len(unknown) > 1 or 0 in sizes else []

    def _header(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor | None:
        if not self._header_size:
            return None
        sizes = [
            tf.size(tensors[place])
            for places in self._lengths.values()
            for place in places
        ]
        sizes += [tf.shape(tensors[p])[axis] for p, axis in self._dimensions]
        return tf.stack(sizes)

    def _split_sizes(
        self, dtype: tf.DType, places: Sequence[int], sizes: "_Sizes"
    ) -> tf.Tensor:
        told = self._lengths[dtype]
        known = [
            self._shapes[place].num_elements() if self._is_known(place) else -1
            for place in places
            if place not in told
        ]
        if not told:
            return tf.constant(known, tf.int32)
        lengths = sizes.next(len(told))
        if not known:
            return lengths
        return tf.concat([tf.constant(known, tf.int32), lengths], 0)

    def _shaped(
        self,
        place: int,
        part: tf.Tensor,
        told: dict[tuple[int, int], tf.Tensor],
    ) -> tf.Tensor:
        shape = self._shapes[place]
        if shape.rank != 1 and self._is_laid_flat(part.dtype):
            sizes = [
                told.get((place, axis), -1) if size is None else size
                for axis, size in enumerate(shape.as_list())
            ]
            part = tf.reshape(part, sizes)
        part.set_shape(shape)
        return part


class _Sizes:
    """Hands out the numbers of a header, in their order."""

    def __init__(self, header: tf.Tensor | None) -> None:
        self._left = header

    def next(self, count: int) -> Any:
        sizes: Any = self._left
        if count < sizes.shape[0]:
            sizes, self._left = sizes[:count], sizes[count:]
        return sizes


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    return tensor if tensor.shape.rank == 1 else tf.reshape(tensor, [-1])


def _as_words(tensor: tf.Tensor, carrier: tf.DType) -> tf.Tensor:
    """Numbers of one axis as the same bits in another dtype."""
    if tensor.dtype == carrier:
        return tensor
    words = tf.bitcast(tensor, carrier)
    return words if tensor.dtype.size == carrier.size else _flat(words)


def _from_words(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What `_as_words` was given."""
    if words.dtype == dtype:
        return words
    each = dtype.size // words.dtype.size
    if each > 1:
        words = tf.reshape(words, [-1, each])
    return tf.bitcast(words, dtype)


def _split(
    together: tf.Tensor, places: Sequence[int], lengths: tf.Tensor
) -> dict[int, tf.Tensor]:
    if len(places) == 1:
        return {places[0]: together}
    parts = tf.split(together, lengths, num=len(places))
    return dict(zip(places, parts, strict=True))


def _joined(pieces: Sequence[tf.Tensor]) -> tf.Tensor:
    return pieces[0] if len(pieces) == 1 else tf.concat(list(pieces), 0)
