"""The function by which one parameter server applies global steps.

One call of the chief makes many steps. In each it takes a parcel of every
member out of its mailbox, in the order of the workers, so that sums are
reproducible. It divides the sum by the number of examples, has the optimizer
update what the ps holds, and gives every member the token of the next step.

A member leaves by a parcel that says so. The steps of the call go on without
it, and the ps keeps nothing of it.
"""

import functools
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers
from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.synchronous import scalars
from tfps_plugin.training.synchronous.global_step import GlobalStep
from tfps_plugin.training.synchronous.parcels import ParcelLayout
from tfps_plugin.training.synchronous.parcels import Part
from tfps_plugin.training.synchronous.scalars import ScalarsOnPs
from tfps_plugin.training.synchronous.sums import example_weights
from tfps_plugin.training.synchronous.sums import sum_loops
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.remote_queues import RemoteQueues


class Sum(NamedTuple):
    """Sum of the parcels of one step.

    Attributes:
        num_parcels: Number of workers that took part, an int32 scalar.
        num_examples: Number of examples, a float32 scalar.
        is_left: Whether each worker has said that it leaves.
        tensors: Sums of dense gradients, and all ids and rows.
        ruling: What a subclass knows of the step besides.
    """

    num_parcels: tf.Tensor
    num_examples: tf.Tensor
    is_left: tf.Tensor
    tensors: list[tf.Tensor]
    ruling: Any = ()


class Applier:
    """Applies the parcels of one step function on one ps.

    Attributes:
        device: Device of the ps.
        scalars: Scalars of the optimizer that other ps hold; each call gets
            their values.
        function: The concrete function. It takes the number of the first
            step and of the step after the last, int64 scalars; whether each
            worker is a member, a vector; and the values of `scalars`. It
            returns the number of the step after the last that was made, and
            the number of steps that each worker has had a part in, a vector.

    Threading: any thread may call the function.
    """

    def __init__(self, step: GlobalStep, ps: int) -> None:
        """Traces the function, in the strategy's scope.

        Args:
            step: A step that was traced.
            ps: Index of the ps.

        Raises:
            UnsupportedError: If an update needs a variable of another ps.
        """
        self.device = step.devices[ps]
        self._ps = ps
        self._norms = step.norms
        self._sums = step.sums.groups_on(ps)
        self._num_workers = step.num_workers
        self._tokens: RemoteQueues = step.tokens[ps]
        self._mailboxes: RemoteQueues = step.mailboxes[ps]
        self._layout: ParcelLayout = step.layouts[ps]
        all_scalars = scalars.of_step(self._layout)
        self._all_scalars = all_scalars
        self.scalars: list[RemoteVariable] = [
            each for each in all_scalars if each.device != self.device
        ]
        with compat.clear_device():
            self.function = tf.function(
                self._run, autograph=False
            ).get_concrete_function(
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([self._num_workers], tf.bool),
                [tf.TensorSpec([], each.dtype) for each in self.scalars],
            )
        self._require_own_variables()

    def empty(self) -> None:
        """Takes out of queues what came too late: here, nothing does."""

    def _run(
        self,
        first: tf.Tensor,
        last: tf.Tensor,
        members: tf.Tensor,
        values: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, ...]:
        trace = StepTrace.current()
        trace.chief_waits = True
        trace.only_on = self.device
        if self._norms is not None:
            trace.total_over_ps = functools.partial(
                self._norms.total_on, self._ps
            )
        own = ScalarsOnPs(self.device, self._all_scalars)
        with tf.device(self.device):
            own.begin(values)
            # They go on beside the updates, step by step.
            ends = [
                sum_loops.add_up(sums, members, last - first)
                for sums in self._sums
            ]
            begun = self._grant(members, first)
            with tf.control_dependencies([begun]):
                number = tf.identity(first)
            total = self._collect(number, members, last)

            def goes_on(
                number: tf.Tensor,
                members: tf.Tensor,
                tallies: list[tf.Tensor],
                total: Sum,
            ) -> tf.Tensor:
                del number, members, tallies
                return self._goes_on(total)

            def body(
                number: tf.Tensor,
                members: tf.Tensor,
                tallies: list[tf.Tensor],
                total: Sum,
            ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], Sum]:
                members = members & ~total.is_left
                tallies = self._counted(tallies, members, total)
                updates = self._update(trace, own, total)
                with tf.control_dependencies(updates):
                    number = number + 1
                whom = self._granted(members, number, last, total)
                done = self._grant(whom, number)
                with tf.control_dependencies([done]):
                    number = tf.identity(number)
                total = self._collect(number, members, last)
                return number, members, tallies, total

            number, _, tallies, _ = tf.while_loop(
                goes_on,
                body,
                (number, members, self._tallies(), total),
                shape_invariants=(
                    tf.TensorShape([]),
                    tf.TensorShape([self._num_workers]),
                    [each.shape for each in self._tallies()],
                    Sum(
                        tf.TensorShape([]),
                        tf.TensorShape([]),
                        tf.TensorShape([self._num_workers]),
                        [part.spec.shape for part in self._layout.parts],
                        tf.nest.map_structure(
                            lambda each: each.shape, total.ruling
                        ),
                    ),
                ),
                parallel_iterations=1,
            )
            if self._norms is not None:
                with tf.control_dependencies([number]):
                    ends.append(self._norms.end_on(self._ps))
            with tf.control_dependencies(ends):
                return tf.identity(number), *map(tf.identity, tallies)

    # The rules that a subclass has others of.

    def _tallies(self) -> list[tf.Tensor]:
        """Returns the first value of what the function returns in the end."""
        return [tf.zeros([self._num_workers], tf.int64)]

    def _counted(
        self, tallies: list[tf.Tensor], members: tf.Tensor, total: Sum
    ) -> list[tf.Tensor]:
        """Returns the tallies after another step."""
        del total
        (num_parts,) = tallies
        return [num_parts + tf.cast(members, tf.int64)]

    def _goes_on(self, total: Sum) -> tf.Tensor:
        """Returns whether there is a step to make from a sum."""
        return total.num_parcels > 0

    def _is_empty(self, total: Sum) -> tf.Tensor | None:
        """Returns whether a step has no parcel; None: it always has one."""
        del total
        return None

    def _granted(
        self, members: tf.Tensor, number: tf.Tensor, last: tf.Tensor, total: Sum
    ) -> tf.Tensor:
        """Returns who gets the token of the step after the one just made."""
        del total
        # No token for a step that is not made: nobody would take it.
        return members & (number < last)

    def _collect(
        self, number: tf.Tensor, members: tf.Tensor, last: tf.Tensor
    ) -> Sum:
        """Takes a parcel of each member; none after the last step."""
        return self._summed(members & (number < last), number)

    def _receive(self, worker: tf.Tensor, number: tf.Tensor) -> list[tf.Tensor]:
        """Takes a parcel of a step, or one that says that its worker leaves."""
        del number
        return self._mailboxes.take(worker)

    # What all have in common.

    def _summed(self, whom: tf.Tensor, number: tf.Tensor) -> Sum:
        """Takes a parcel of each of some workers; adds them up.

        Args:
            whom: Whether to take one of each worker, a vector.
            number: Number of the step.
        """
        parts = self._layout.parts
        whom = tf.where(whom)[:, 0]

        def add(
            place: tf.Tensor,
            num_parcels: tf.Tensor,
            num_examples: tf.Tensor,
            is_left: tf.Tensor,
            sums: list[Any],
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, list[Any]]:
            worker = tf.cast(whom[place], tf.int32)
            stamp, weight, *tensors = self._receive(worker, number)
            # A worker that leaves sends zeros, and no rows.
            leaves = tf.ensure_shape(stamp, []) != number
            num_parcels += 1 - tf.cast(leaves, tf.int32)
            is_left |= leaves & (tf.range(self._num_workers) == worker)
            is_first = tf.equal(num_parcels, 1) & ~leaves
            sums = [
                _with(part, total, tensor, place, is_first)
                for part, total, tensor in zip(
                    parts, sums, tensors, strict=True
                )
            ]
            weight = tf.ensure_shape(weight, [])
            num_examples += weight
            return place + 1, num_parcels, num_examples, is_left, sums

        _, num_parcels, num_examples, is_left, sums = tf.while_loop(
            lambda place, *_: place < tf.size(whom),
            add,
            (
                tf.constant(0),
                tf.constant(0),
                tf.zeros([]),
                tf.zeros([self._num_workers], tf.bool),
                [_nothing(part, tf.size(whom)) for part in parts],
            ),
            parallel_iterations=1,
        )
        return Sum(
            num_parcels,
            num_examples,
            is_left,
            [
                total.concat() if part.how == "rows" else total
                for part, total in zip(parts, sums, strict=True)
            ],
        )

    def _update(
        self, trace: StepTrace, own: ScalarsOnPs, total: Sum
    ) -> list[tf.Operation]:
        """Has the optimizers update what the ps holds.

        Returns:
            The operations of the update.
        """
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())

        def operations() -> list[tf.Operation]:
            return [
                operation
                for operation in graph.get_operations()[before:]
                if operation.type != "Placeholder"
            ]

        tensors = [
            _mean(part, tensor, total.num_examples)
            for part, tensor in zip(
                self._layout.parts, total.tensors, strict=True
            )
        ]

        def run(
            optimizer: Any,
            gradients: list[Any],
            variables: list[Any],
            is_finite: tf.Tensor | None,
        ) -> None:
            trace.is_finite = is_finite
            # In order: each ps would send parts of several norms as they come,
            # and the chief adds up those of one norm.
            earlier = [] if self._norms is None else operations()
            with tf.control_dependencies(earlier):
                # Parts of Keras insist on being called in a replica's context.
                keras_optimizers.strategy_of(optimizer).run(
                    optimizer.apply, args=(gradients, variables)
                )
            trace.is_finite = None

        with trace.viewing(own.views):
            self._layout.apply(
                tensors, run, total.num_examples > 0, self._is_empty(total)
            )
        return operations()

    def _grant(self, members: tf.Tensor, number: tf.Tensor) -> tf.Operation:
        """Gives members the token of a step."""
        whom = tf.cast(tf.where(members)[:, 0], tf.int32)

        def give(place: tf.Tensor) -> tf.Tensor:
            put = self._tokens.put(whom[place], [number])
            with tf.control_dependencies([put]):
                return place + 1

        (given,) = tf.while_loop(
            lambda place: place < tf.size(whom),
            lambda place: (give(place),),
            (tf.constant(0),),
        )
        return given.op

    def _require_own_variables(self) -> None:
        homes = tensorflow_captures.homes_of_captures(self.function.graph)
        others = sorted({*homes.values()} - {self.device})
        if others:
            raise errors.UnsupportedError(
                "An update of a synchronous step runs on the parameter server "
                "of its variable, and can use variables there, and scalars of "
                "the optimizer. Expected no other variables. Received: an "
                f"update on {self.device} that uses variables on {others}. "
                "Make slots by add_variable_from_reference(), which puts them "
                "beside their variable, or train with consistency=tfps.Async()."
            )


def _nothing(part: Part, number: tf.Tensor) -> Any:
    """Returns what the tensors of some workers are added to."""
    if part.how != "rows":
        return tf.zeros(part.spec.shape, part.spec.dtype)
    # Rows are only listed, and concatenated at the end.
    return tf.TensorArray(
        part.spec.dtype,
        size=number,
        infer_shape=False,
        element_shape=part.spec.shape,
    )


def _with(
    part: Part,
    total: Any,
    tensor: tf.Tensor,
    place: tf.Tensor,
    is_first: tf.Tensor,
) -> Any:
    """Returns the tensors of some workers, with that of another."""
    if part.how == "rows":
        return total.write(place, tensor)
    tensor = tf.ensure_shape(tensor, part.spec.shape)
    if part.how == "first":
        return tf.where(is_first, tensor, total)
    return total + tensor


def _mean(part: Part, total: tf.Tensor, num_examples: tf.Tensor) -> tf.Tensor:
    """Divides what workers have weighed by their numbers of examples."""
    if part.how == "mean" or (part.how == "rows" and total.dtype.is_floating):
        # Without any example, the gradients are zero.
        return total / example_weights.of(
            tf.maximum(num_examples, 1.0), total.dtype
        )
    return total
