"""Many tensors as few, for the way from one device to another.

Tensors of one dtype are laid end to end. Sizes that are known when a step is
traced do not travel. Those that are not travel as numbers, in front of other
integers where there are any.
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

    Sizes come in two kinds: the lengths of tensors laid flat, and single
    dimensions. Those that the receiver needs are the header.
    """

    def __init__(self, tensors: Sequence[tf.Tensor]) -> None:
        """Decides how; makes no operation.

        Args:
            tensors: Packable, two or more.
        """
        self._shapes = [tensor.shape for tensor in tensors]
        self._groups: dict[tf.DType, list[int]] = collections.defaultdict(list)
        for place, tensor in enumerate(tensors):
            self._groups[tensor.dtype].append(place)
        # By dtype, whose lengths are not known; and whose dimensions.
        self._lengths: dict[tf.DType, list[int]] = {}
        self._dimensions: list[tuple[int, int]] = []
        for dtype, places in self._groups.items():
            if len(places) == 1:
                continue
            # Lengths that the receiver is told come last.
            places.sort(key=lambda place: not self._is_known(place))
            unknown = [place for place in places if not self._is_known(place)]
            # A single one is what is left.
            self._lengths[dtype] = unknown if len(unknown) > 1 else []
            self._dimensions += [
                (place, axis)
                for place in unknown
                for axis in self._dimensions_told(place)
            ]
        self._header_size = len(self._dimensions) + sum(
            len(places) for places in self._lengths.values()
        )
        self._header_dtype = next(
            (
                dtype
                for dtype in (tf.int32, tf.int64)
                if len(self._groups.get(dtype, [])) > 1
            ),
            None,
        )

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What travels.

        Args:
            tensors: In the order of those that this was made with.
        """
        header = self._header(tensors)
        parcels = []
        for dtype, places in self._groups.items():
            parts = [tensors[place] for place in places]
            if header is not None and dtype == self._header_dtype:
                parts.insert(0, tf.cast(header, dtype))
            if len(parts) > 1:
                parcels.append(tf.concat([_flat(part) for part in parts], 0))
            else:
                parcels += parts
        if header is not None and self._header_dtype is None:
            parcels.append(header)
        return parcels

    def unpack(self, parcels: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What was packed.

        Args:
            parcels: As `pack` returned them.
        """
        by_dtype = dict(zip(self._groups, parcels, strict=False))
        header = None
        if self._header_size and self._header_dtype is None:
            header = parcels[-1]
        elif self._header_size:
            together = by_dtype[self._header_dtype]
            header = tf.cast(together[: self._header_size], tf.int32)
            by_dtype[self._header_dtype] = together[self._header_size :]
        if header is not None:
            header.set_shape([self._header_size])
        sizes = _Sizes(header)
        parts: dict[int, tf.Tensor] = {}
        for dtype, places in self._groups.items():
            if len(places) == 1:
                parts[places[0]] = by_dtype[dtype]
                continue
            lengths = self._split_sizes(places, self._lengths[dtype], sizes)
            for place, part in zip(
                places,
                tf.split(by_dtype[dtype], lengths, num=len(places)),
                strict=True,
            ):
                parts[place] = part
        told = {where: sizes.next(1)[0] for where in self._dimensions}
        return [
            self._shaped(place, parts[place], told)
            for place in range(len(self._shapes))
        ]

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
        self, places: Sequence[int], told: Sequence[int], sizes: "_Sizes"
    ) -> tf.Tensor:
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
        if shape.rank != 1 and len(self._groups[part.dtype]) > 1:
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
