"""Parcels: what one worker sends to one parameter server in a step.

A parcel has gradients, and values that the step assigns. Shape legend: U
distinct ids, D the rest of a row's shape.
"""

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import NamedTuple

import keras
import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.strategy import update_parts
from tfps_plugin.training.optimizers import sparse_gradients
from tfps_plugin.training.synchronous import stacked_rows
from tfps_plugin.training.synchronous.stacked_rows import StackedRows
from tfps_plugin.training.synchronous.sums import example_weights
from tfps_plugin.variables.compression import error_feedback
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup.distinct_rows import distinct

# The way in which a ps puts the values of several workers together: their mean
# over examples, their sum, the value of the first worker, or a list of rows.
How = Literal["mean", "sum", "first", "rows"]


class Part(NamedTuple):
    """One tensor of a parcel.

    Attributes:
        spec: Its type.
        how: The way to put the tensors of workers together.
    """

    spec: tf.TensorSpec
    how: How


class Applied(NamedTuple):
    """The gradients of one `optimizer.apply`, on the worker.

    Attributes:
        optimizer: The Keras optimizer.
        gradients: A tensor or `tf.IndexedSlices` for every variable.
        variables: The `keras.Variable` of each gradient.
    """

    optimizer: Any
    gradients: list[Any]
    variables: list[keras.Variable]


class Assigned(NamedTuple):
    """A change of a variable by the step itself, on the worker.

    Attributes:
        variable: A variable on parameter servers.
        method: `"assign"`, `"assign_add"` or `"assign_sub"`.
        value: The value, a tensor of the variable's shape.
        how: The way to put the values of workers together.
    """

    variable: Any
    method: str
    value: tf.Tensor
    how: How


class _Shard(NamedTuple):
    """A shard that has a gradient."""

    variable: keras.Variable
    number: int


@dataclasses.dataclass(frozen=True)
class _Stack:
    """Shards of which a parcel has some rows of one shape, stacked."""

    shards: list[_Shard]
    rows: StackedRows
    parts: tuple[Part, Part]


@dataclasses.dataclass(frozen=True)
class _Group:
    """The gradients of one `optimizer.apply` that one ps gets.

    The parcel has dense gradients of `whole`, and then the ids and rows of each
    of `stacks`.
    """

    optimizer: Any
    variables: list[keras.Variable]
    whole: list[tuple[_Shard, Part]] = dataclasses.field(default_factory=list)
    stacks: list[_Stack] = dataclasses.field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        """The tensors in the parcel, in order."""
        return [
            *(part for _, part in self.whole),
            *(part for stack in self.stacks for part in stack.parts),
        ]


class ParcelLayout:
    """The layout of the parcels that a step sends to one ps.

    Threading: only the thread that traces changes it.
    """

    def __init__(self) -> None:
        """Begins with an empty parcel."""
        self._groups: list[_Group] = []
        self._assignments: list[tuple[Any, str, Part]] = []
        self._checks = False

    @property
    def parts(self) -> list[Part]:
        """The tensors of a parcel, in order."""
        parts = [part for group in self._groups for part in group.parts]
        parts += [part for _, _, part in self._assignments]
        if self._checks:
            parts.append(Part(tf.TensorSpec([], tf.float32), "sum"))
        return parts

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that apply gradients."""
        return [group.optimizer for group in self._groups]

    @property
    def updates(self) -> list[tuple[Any, list[keras.Variable]]]:
        """The optimizers that update variables, and all their variables.

        The optimizer inside of a `LossScaleOptimizer` stands for that.
        """
        return [
            (
                getattr(group.optimizer, "inner_optimizer", group.optimizer),
                group.variables,
            )
            for group in self._groups
        ]

    @property
    def assigned(self) -> list[Any]:
        """The variables, or shards, to which the step assigns values."""
        return [variable for variable, _, _ in self._assignments]

    def apply(
        self,
        tensors: Sequence[tf.Tensor],
        run: Callable[[Any, list[Any], list[keras.Variable], Any], None],
        has_examples: tf.Tensor,
        is_empty: tf.Tensor | None = None,
    ) -> None:
        """Applies the tensors of several parcels that were put together.

        Args:
            tensors: A tensor for each of `parts`; the ids of rows may repeat.
            run: Applies gradients. Takes an optimizer; gradients of the rows on
                this ps (see `StepTrace.only_on`) and their variables; and
                whether those of all ps are finite, or None.
            has_examples: Whether there is anything to be the mean of.
            is_empty: Whether there was no parcel, and so nothing to assign;
                None: there was one.
        """
        left = iter(tensors)
        found = [
            (group, list(_gradients(group, left))) for group in self._groups
        ]
        values = [
            (variable, method, part.how, next(left))
            for variable, method, part in self._assignments
        ]
        is_finite = tf.equal(next(left), 0) if self._checks else None
        for group, pairs in found:
            run(
                group.optimizer,
                [gradient for _, gradient in pairs],
                [variable for variable, _ in pairs],
                is_finite,
            )
        for variable, method, how, value in values:
            value = tf.cast(value, variable.dtype)
            is_void = ~has_examples if how == "mean" else is_empty
            if is_void is not None and method == "assign":
                value = tf.where(is_void, variable.read_value(), value)
            getattr(variable, method)(value)


class Parcels:
    """The parcels of one step of a worker, one for each ps.

    Attributes:
        layouts: The layouts, by the device of the ps.
        tensors: The tensors of the parcels, on the ps, likewise.
    """

    def __init__(
        self,
        applied: Sequence[Applied],
        assigned: Sequence[Assigned],
        devices: Sequence[str],
        num_examples: tf.Tensor,
    ) -> None:
        """Makes the parcels; for use in a function of workers.

        Args:
            applied: The gradients.
            assigned: The changes of variables by the step itself.
            devices: Device of each ps.
            num_examples: Number of examples of the batch, by which gradients
                and means count; a float32 scalar.
        """
        self.layouts = {device: ParcelLayout() for device in devices}
        self.tensors: dict[str, list[tf.Tensor]] = {d: [] for d in devices}
        checked: list[tuple[Any, Any]] = []
        for each in applied:
            sent = self._add_gradients(each, num_examples)
            if isinstance(each.optimizer, keras.optimizers.LossScaleOptimizer):
                checked += sent
        for change in assigned:
            self._add_value(change, num_examples)
        if checked:
            self._add_check(checked, num_examples)

    def _add_gradients(
        self, applied: Applied, num_examples: tf.Tensor
    ) -> list[tuple[Any, Any]]:
        """Adds the gradients of one `optimizer.apply`.

        Returns:
            Variables on parameter servers, and the gradient to send of each.
        """
        sent = []
        shares: dict[str, list[tuple[_Shard, _OfShard]]] = {
            device: [] for device in self.layouts
        }
        for gradient, variable in zip(
            applied.gradients, applied.variables, strict=True
        ):
            value = compat.value_of(variable)
            if isinstance(gradient, tf.IndexedSlices):
                gradient = distinct(gradient)
            gradient = error_feedback.corrected(value, gradient)
            sent.append((value, gradient))
            for part in _parts_of(value, gradient):
                shard = _Shard(variable, _number(value, part.shard))
                shares[part.device].append((shard, part))
        for device, layout in self.layouts.items():
            group = _Group(applied.optimizer, applied.variables)
            layout._groups.append(group)
            with tf.device(device):
                self.tensors[device] += _fill(
                    group, shares[device], num_examples
                )
        return sent

    def _add_value(self, change: Assigned, num_examples: tf.Tensor) -> None:
        for part in _parts_of(change.variable, change.value):
            values = part.values
            if change.how == "mean":
                with tf.device(part.device):
                    values = _times(values, num_examples)
            self.layouts[part.device]._assignments.append(
                (part.shard, change.method, _part(part, values, change.how))
            )
            self.tensors[part.device].append(values)

    def _add_check(
        self, sent: Sequence[tuple[Any, Any]], num_examples: tf.Tensor
    ) -> None:
        """Tells every ps whether all gradients are finite, if they count."""
        are_finite = tf.reduce_all(
            [
                tf.reduce_all(tf.math.is_finite(_as_it_arrives(*each)))
                for each in sent
            ]
        )
        # Made on the worker: a truth value would take a message of its own.
        is_broken = 1.0 - tf.cast(are_finite | (num_examples <= 0), tf.float32)
        for device, layout in self.layouts.items():
            layout._checks = True
            with tf.device(device):
                self.tensors[device].append(tf.identity(is_broken))


def _as_it_arrives(variable: Any, gradient: Any) -> tf.Tensor:
    """Returns the values of a gradient that are finite if they arrive so.

    A scaled one may be too large for its dtype on the way. A row that travels
    as int8 is finite if its numbers are.
    """
    values = sparse_gradients.values_of(gradient)
    wire_dtype = wire.dtype_for(variable)
    if wire_dtype is None or wire_dtype == tf.int8:
        return values
    return wire.narrowed(values, wire_dtype)


class _OfShard(NamedTuple):
    """The share of one shard in a gradient or a value, on its ps."""

    shard: RemoteVariable
    device: str
    values: tf.Tensor
    ids: tf.Tensor | None


def _parts_of(variable: Any, value: Any) -> Iterator[_OfShard]:
    """Cuts a gradient or a value by shard, and sends it to the ps."""
    for part in update_parts.parts_of(variable, (value,), exact=False):
        if part.shard is None:
            # `GlobalStep` has refused variables elsewhere.
            continue
        with tf.control_dependencies(part.arrivals):
            # No other step makes rows before this one has ended.
            ids_U = part.renewed().ids_U
        yield _OfShard(
            part.shard,
            part.device,
            part.args[0],
            ids_U if part.is_rows else None,
        )


def _part(of_shard: _OfShard, values: tf.Tensor, how: How) -> Part:
    shape = of_shard.shard.shape
    if how == "rows":
        shape = tf.TensorShape([None, *shape[1:]])
    return Part(tf.TensorSpec(shape, values.dtype), how)


def _fill(
    group: _Group,
    shares: Sequence[tuple[_Shard, _OfShard]],
    num_examples: tf.Tensor,
) -> list[tf.Tensor]:
    """Adds the gradients of one ps to a group; returns weighed tensors."""
    tensors = []
    by_shape: dict[Any, list[tuple[_Shard, _OfShard]]] = (
        collections.defaultdict(list)
    )
    for shard, part in shares:
        if part.ids is None:
            values = _times(part.values, num_examples)
            group.whole.append((shard, _part(part, values, "mean")))
            tensors.append(values)
        else:
            shape = tuple(part.shard.shape[1:])
            by_shape[part.values.dtype, shape].append((shard, part))
    for alike in by_shape.values():
        parts = [part for _, part in alike]
        rows = StackedRows([part.shard.shape[0] for part in parts])
        stacked_ids, values = rows.stack(
            [part.ids for part in parts], [part.values for part in parts]
        )
        values = _times(values, num_examples)
        tensors += [stacked_ids, values]
        ids = Part(tf.TensorSpec([None], tf.int64), "rows")
        group.stacks.append(
            _Stack(
                [shard for shard, _ in alike],
                rows,
                (ids, _part(parts[0], values, "rows")),
            )
        )
    return tensors


def _number(value: Any, shard: Any) -> int:
    """Returns the number of a shard in its variable."""
    if not isinstance(value, ShardedVariable):
        return 0
    return [id(each) for each in value.variables].index(id(shard))


def _times(values: tf.Tensor, num_examples: tf.Tensor) -> tf.Tensor:
    """Weighs values by a number of examples, in float32 at least.

    Without any example, values are zero, also those that are not numbers.
    """
    if values.dtype.size < tf.float32.size:
        values = tf.cast(values, tf.float32)
    return tf.math.multiply_no_nan(
        values, example_weights.of(num_examples, values.dtype)
    )


def _gradients(
    group: _Group, tensors: Iterator[tf.Tensor]
) -> Iterator[tuple[keras.Variable, Any]]:
    """Yields the variables of a group, and their gradients on this ps."""
    found: dict[int, dict[int, Any]] = collections.defaultdict(dict)
    for shard, _ in group.whole:
        found[id(shard.variable)][shard.number] = next(tensors)
    for stack in group.stacks:
        sums = stack.rows.sums(next(tensors), next(tensors))
        for shard, slices in zip(stack.shards, sums, strict=True):
            found[id(shard.variable)][shard.number] = slices
    for variable in group.variables:
        shards = found.get(id(variable))
        if not shards:
            continue
        if isinstance(next(iter(shards.values())), tuple):
            value = compat.value_of(variable)
            yield (
                variable,
                stacked_rows.rows_of_variable(
                    value.layout, value.shape, shards
                ),
            )
        else:
            yield variable, stacked_rows.concatenated([*shards.values()])
