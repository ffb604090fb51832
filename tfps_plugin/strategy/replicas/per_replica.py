"""Values that the replicas of one worker have, as one value."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_strategy as compat


class PerReplica(tf.distribute.DistributedValues, compat.CompositeTensor):
    """A value of each replica of a worker.

    Functions and datasets take and return it as they do a tensor.
    `strategy.run` gives each replica its own. `strategy.reduce`,
    `strategy.gather` and `strategy.experimental_local_results` take it.

    Attributes:
        values: The values, in the order of replicas: tensors, ragged and sparse
            ones too.
        num_examples: Number of examples of each replica, int64 scalars; None:
            not known. Where a batch has fewer examples than the worker has
            replicas, some have none, and their values do not count.
    """

    def __init__(
        self,
        values: Sequence[Any],
        num_examples: Sequence[tf.Tensor] | None = None,
    ) -> None:
        """Takes the value of one replica after the other."""
        self.values = tuple(values)
        self.num_examples = (
            None if num_examples is None else tuple(num_examples)
        )

    def reduced(
        self, reduce_op: Any, axis: int | Sequence[int] | None = None
    ) -> Any:
        """Returns the sum or the mean over replicas that have examples.

        As `tf.distribute.Strategy.reduce`.

        Args:
            reduce_op: A `tf.distribute.ReduceOp`, or its name.
            axis: An axis of each value to reduce as well, or several. Then a
                mean is one over all elements along it.

        Returns:
            A tensor.

        Raises:
            ValueError: If `reduce_op` is neither a sum nor a mean.
        """
        name = str(getattr(reduce_op, "value", reduce_op)).upper()
        if name not in ("SUM", "MEAN"):
            raise ValueError(
                'reduce_op must be "SUM" or "MEAN". Received: '
                f"reduce_op={reduce_op!r}"
            )
        values = [tf.convert_to_tensor(value) for value in self.values]
        counts = [tf.ones([], tf.int64) for _ in values]
        if axis is not None:
            axes = [axis] if isinstance(axis, int) else list(axis)
            counts = [
                tf.reduce_prod(tf.gather(tf.shape(value, tf.int64), axes))
                for value in values
            ]
            values = [tf.reduce_sum(value, axes) for value in values]
        total = tf.add_n(self._of_present(values))
        if name == "SUM":
            return total
        return tf.math.divide(
            total, tf.cast(tf.add_n(self._of_present(counts)), total.dtype)
        )

    def mean_over_examples(self) -> tf.Tensor:
        """Returns the mean of means over the examples of each replica."""
        if self.num_examples is None:
            return tf.add_n(list(self.values)) / len(self.values)
        dtype = self.values[0].dtype
        total = tf.maximum(tf.add_n(list(self.num_examples)), 1)
        return tf.add_n(
            [
                # Zero where the weight is, also of what is not finite.
                tf.math.multiply_no_nan(value, tf.cast(number / total, dtype))
                for value, number in zip(
                    self.values, self.num_examples, strict=True
                )
            ]
        )

    def gathered(self, axis: int) -> tf.Tensor:
        """Returns the values one behind the other.

        As `tf.distribute.Strategy.gather`; what belongs to no example is left
        out.

        Args:
            axis: The axis along which to put them.
        """
        values = list(self.values)
        if isinstance(values[0], tf.SparseTensor):
            return tf.sparse.concat(axis, values)
        if isinstance(values[0], tf.RaggedTensor):
            return tf.concat(values, axis)
        values = [tf.convert_to_tensor(value) for value in values]
        if self.num_examples is not None:
            values = [
                tf.cond(
                    number > 0,
                    lambda v=value: v,
                    lambda v=value: _none(v, axis),
                )
                for value, number in zip(values, self.num_examples, strict=True)
            ]
        return tf.concat(values, axis)

    def _of_present(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns values, with zeros for replicas without examples."""
        if self.num_examples is None:
            return list(values)
        return [
            tf.where(number > 0, value, tf.zeros_like(value))
            for value, number in zip(values, self.num_examples, strict=True)
        ]

    @property
    def _type_spec(self) -> "PerReplicaSpec":
        return PerReplicaSpec(
            [tf.type_spec_from_value(each) for each in self.values],
            self.num_examples is not None,
        )

    def __repr__(self) -> str:
        """Returns the values as a short text."""
        return f"PerReplica({', '.join(map(repr, self.values))})"

    __str__ = __repr__


class PerReplicaSpec(tf.TypeSpec):
    """Type of a `PerReplica`."""

    __slots__ = ("_has_numbers", "_specs")

    value_type = property(lambda self: PerReplica)

    def __init__(self, specs: Sequence[Any], has_numbers: bool) -> None:
        """Takes the type of one value after the other."""
        self._specs = tuple(specs)
        self._has_numbers = has_numbers

    def _serialize(self) -> tuple[Any, ...]:
        return self._specs, self._has_numbers

    @property
    def _component_specs(self) -> tuple[Any, ...]:
        numbers = [tf.TensorSpec([], tf.int64)] * len(self._specs)
        return self._specs, tuple(numbers if self._has_numbers else ())

    def _to_components(self, value: Any) -> tuple[Any, ...]:
        return value.values, value.num_examples or ()

    def _from_components(self, components: Any) -> PerReplica:
        values, num_examples = components
        return PerReplica(values, num_examples or None)


def of_replica(structure: Any, index: int, num_replicas: int) -> Any:
    """Returns what one replica gets of a structure of values.

    Args:
        structure: A nested structure; what is no `PerReplica` is for all.
        index: Index of the replica.
        num_replicas: Number of replicas of the worker.

    Raises:
        InputError: If a value is for another number of replicas.
    """

    def select(value: Any) -> Any:
        if not isinstance(value, PerReplica):
            return value
        if len(value.values) != num_replicas:
            raise errors.InputError(
                "strategy.run() got a value for another number of replicas. "
                f"Expected {num_replicas}, one for each replica of a worker. "
                f"Received: {value!r}. Distribute the dataset by "
                "strategy.experimental_distribute_dataset() of this strategy."
            )
        return value.values[index]

    return tf.nest.map_structure(select, structure)


def together(
    results: Sequence[Any], num_examples: Sequence[tf.Tensor] | None = None
) -> Any:
    """Returns the results of replicas as one structure of `PerReplica`.

    Args:
        results: The result of each replica. What is neither a tensor nor a
            composite one has to be the same for all.
        num_examples: As in `PerReplica`.

    Raises:
        InputError: If it is not.
    """

    def join(*values: Any) -> Any:
        if all(map(tf.is_tensor, values)):
            return PerReplica(values, num_examples)
        if any(
            value is not values[0] and value != values[0] for value in values
        ):
            raise errors.InputError(
                "The replicas of a worker returned different Python values "
                "from strategy.run(). Expected tensors, or the same value. "
                f"Received: {values!r}. Return a tensor."
            )
        return values[0]

    return tf.nest.map_structure(join, *results)


def map_values(function: Callable[[PerReplica], Any], structure: Any) -> Any:
    """Returns a structure with a value in place of each `PerReplica`.

    Args:
        function: Maps a `PerReplica` to the value.
        structure: A nested structure.
    """
    return tf.nest.map_structure(
        lambda value: (
            function(value) if isinstance(value, PerReplica) else value
        ),
        structure,
    )


def _none(value: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns none of a tensor along an axis."""
    return tf.gather(value, tf.zeros([0], tf.int32), axis=axis)
