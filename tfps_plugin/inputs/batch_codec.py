"""Codec of batches: encodes them as strings, so that many share one tensor.

A batch may be any structure of tensors, including ragged and sparse ones. Sent
directly, each of its parts is a message of its own; as strings, a whole group
of batches is one message.

Shape legend: K batches of a group, C parts of a batch.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph.tensorflow_inputs import NoneTensorSpec
from tfps_plugin.inputs.tuning import without_tuning


def _is_nothing(spec: Any) -> bool:
    """Returns whether a spec stands for None, which may be an Optional."""
    return isinstance(spec, tf.OptionalSpec | NoneTensorSpec)


def _of_any_size(spec: Any) -> Any:
    """Returns the type of parts of a batch with any number of examples."""
    shape = getattr(spec, "shape", None)
    if _is_nothing(spec) or shape is None or not shape.rank:
        return spec
    shape = tf.TensorShape([None, *shape[1:]])
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(
            shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    return type(spec)(shape, spec.dtype)


class BatchCodec:
    """Encodes batches of one type as strings, and decodes them.

    Threading: immutable, so safe from any thread.
    """

    def __init__(self, element_spec: Any) -> None:
        """Prepares for batches of one type.

        Args:
            element_spec: Type of a batch, a nested structure of
                `tf.TypeSpec`.
        """
        self._element_spec = element_spec
        self._leaf_specs = tf.nest.flatten(element_spec)
        self._part_specs = [
            part
            for leaf in self._leaf_specs
            if not _is_nothing(leaf)
            for part in tf.nest.flatten(leaf, expand_composites=True)
        ]

    @property
    def element_spec(self) -> Any:
        """Type of a batch before it is encoded."""
        return self._element_spec

    @property
    def decoded_spec(self) -> Any:
        """Type of a decoded batch."""
        return tf.nest.pack_sequence_as(
            self._element_spec,
            [None if _is_nothing(leaf) else leaf for leaf in self._leaf_specs],
        )

    def of_any_size(self) -> "BatchCodec":
        """Returns the codec of batches that differ in the number of examples.

        Its strings are the same.
        """
        return BatchCodec(
            tf.nest.map_structure(_of_any_size, self._element_spec)
        )

    @property
    def num_parts(self) -> int:
        """Number of strings in an encoded batch."""
        return len(self._part_specs)

    def encode(self, *batch: Any) -> tf.Tensor:
        """Encodes one batch.

        Args:
            *batch: The batch as a dataset passes it to a function: a tuple
                is passed as several arguments.

        Returns:
            A string tensor of shape `(C,)`.
        """
        return self.encode_one(
            batch if isinstance(self._element_spec, tuple) else batch[0]
        )

    def encode_one(self, element: Any) -> tf.Tensor:
        """Encodes one batch.

        Args:
            element: The batch, a structure of tensors.

        Returns:
            A string tensor of shape `(C,)`.
        """
        tf.nest.assert_same_structure(element, self._element_spec)
        parts = [
            part
            for leaf, spec in zip(
                tf.nest.flatten(element), self._leaf_specs, strict=True
            )
            if not _is_nothing(spec)
            for part in tf.nest.flatten(leaf, expand_composites=True)
        ]
        if not parts:
            return tf.zeros([0], tf.string)
        return tf.stack([tf.io.serialize_tensor(part) for part in parts])

    def encoded(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset of encoded batches, of shape `(C,)`."""
        strings = dataset.map(
            self.encode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return without_tuning(strings)

    def decode(self, parts_C: tf.Tensor) -> Any:
        """Decodes a batch from `encode`.

        Args:
            parts_C: The strings, shape `(C,)`.

        Returns:
            The batch, of type `decoded_spec`.
        """
        parts = iter(
            [
                self._decode_part(parts_C[number], spec)
                for number, spec in enumerate(self._part_specs)
            ]
        )
        leaves: list[Any] = []
        for spec in self._leaf_specs:
            if _is_nothing(spec):
                leaves.append(None)
                continue
            own = [
                next(parts)
                for _ in tf.nest.flatten(spec, expand_composites=True)
            ]
            leaves.append(
                tf.nest.pack_sequence_as(spec, own, expand_composites=True)
            )
        return tf.nest.pack_sequence_as(self._element_spec, leaves)

    @staticmethod
    def _decode_part(part: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        tensor = tf.io.parse_tensor(part, spec.dtype)
        return tf.ensure_shape(tensor, spec.shape)
