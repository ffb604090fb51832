"""Changes and reductions of the replicas of one worker."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.strategy.replicas.shares import Shares
from tfps_plugin.variables.methods import self_assignment
from tfps_plugin.variables.states import combining
from tfps_plugin.variables.states.sync_rules import Change
from tfps_plugin.variables.step_trace import Exchange
from tfps_plugin.variables.step_trace import StepTrace


class ReplicaExchange:
    """Makes one change of the worker of those of its replicas.

    What it makes goes the way of a step with one replica: to the parameter
    servers, or to the `Exchange` of a step that workers make together.

    Attributes:
        reads_exactly: Whether replicas read what others have changed.
        changes: The means that were assigned to states, and that nobody has
            called means.
        assigned: All variables that were assigned.
        results: The values that were assigned, and the gradients applied.

    Threading: only the threads that trace use it, one at a time.
    """

    def __init__(
        self,
        shares: Callable[[], Shares],
        outer: Exchange | None,
        devices: Sequence[str],
    ) -> None:
        """Begins without changes.

        Args:
            shares: Returns the shares of the replicas.
            outer: The receiver of the worker's changes; None: it makes them.
            devices: The device of each replica.
        """
        self._shares = shares
        self._outer = outer
        self._device = devices[0]
        self.reads_exactly = outer is not None and outer.reads_exactly
        self.changes: list[Change] = []
        self.assigned: list[Any] = []
        self.results: list[Any] = []

    def push(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Applies the mean of the gradients of all replicas."""

        def apply(given: Sequence[Any]) -> list[None]:
            _require_same_variables(optimizer, [each for _, each in given])
            with tf.device(self._device):
                means = [
                    self._shares().mean_gradient(each)
                    for each in zip(*(mine for mine, _ in given), strict=True)
                ]
            self.results.append(means)
            optimizer.apply(means, list(variables))
            return [None] * len(given)

        _meet(
            f"optimizer.apply() of {optimizer.name!r}",
            (list(gradients), list(variables)),
            apply,
        )

    def assign(self, variable: Any, method: str, value: Any) -> None:
        """Assigns what the values of all replicas come to."""

        def assign(values: Sequence[Any]) -> list[None]:
            combined = self._combined(variable, method, values)
            getattr(variable, method)(combined)
            return [None] * len(values)

        value = tf.convert_to_tensor(value, variable.dtype)
        _meet(f"{method} of {variable.name!r}", value, assign)

    def _combined(
        self, variable: Any, method: str, values: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        how = combining.how_to_combine(variable, method, values[0])
        if how == "mean" and not combining.says_how(variable):
            others = self_assignment.others_of(variable, values[0])
            self.changes.append(Change(variable, values[0], others))
        self.assigned.append(variable)
        self.results.append(values[0])
        if how == "first":
            return values[0]
        with tf.device(self._device):
            shares = self._shares()
            return shares.mean(values) if how == "mean" else shares.sum(values)

    def all_reduce(
        self, reduce_op: Any, values: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Returns sums or means over all replicas that make the step.

        The loss of a worker is the mean over the examples of its replicas, and
        the gradient of a replica will be multiplied by its weight. So what it
        gets of the gradients of all is weighed, and divided by its own weight.
        """
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        for value in values:
            _require_summable(value, is_mean=is_mean)

        @tf.custom_gradient
        def reduced(*mine: tf.Tensor) -> Any:
            tape, sums, totals = _meet(
                "all_reduce()",
                mine,
                lambda all_values: self._reduced(
                    reduce_op, all_values, is_mean=is_mean
                ),
            )

            def gradient(*theirs: Any) -> list[tf.Tensor | None]:
                _require_first_order()
                return _meet(
                    "the gradient of all_reduce()",
                    theirs,
                    lambda all_gradients: self._gradients(
                        tape, sums, totals, all_gradients
                    ),
                )

            return [tf.identity(each) for each in totals], gradient

        return list(reduced(*values))

    def _reduced(
        self,
        reduce_op: Any,
        values: Sequence[Sequence[tf.Tensor]],
        *,
        is_mean: bool,
    ) -> list[Any]:
        shares = self._shares()
        with tf.device(self._device):
            sums = [shares.sum(each) for each in zip(*values, strict=True)]
        tape = tf.GradientTape(persistent=True)
        with tape:
            for each in sums:
                tape.watch(each)
            totals = sums
            if is_mean:
                totals = [
                    each / shares.num_present(each.dtype) for each in sums
                ]
            if self._outer is not None:
                totals = self._outer.all_reduce(reduce_op, totals)
            totals = [tf.identity(each) for each in totals]
        return [(tape, sums, totals)] * len(values)

    def _gradients(
        self,
        tape: tf.GradientTape,
        sums: Sequence[tf.Tensor],
        totals: Sequence[tf.Tensor],
        upstream: Sequence[Sequence[tf.Tensor]],
    ) -> list[list[tf.Tensor | None]]:
        shares = self._shares()
        with tf.device(self._device):
            means = [
                _mean(shares, each) for each in zip(*upstream, strict=True)
            ]
        found = tape.gradient(totals, sums, output_gradients=means)
        return [
            [
                None
                if each is None
                else tf.math.divide_no_nan(
                    each, shares.weight(index, each.dtype)
                )
                for each in found
            ]
            for index in range(shares.num_replicas)
        ]

    def all_gather(self) -> None:
        """Refuses the values of all replicas, one by one."""
        raise errors.UnsupportedError(
            "Replicas of a worker see sums and means of their values only. "
            "Expected all_reduce(). Received: all_gather(). Leave it out, or "
            "train with replicas_per_worker=1."
        )


def _mean(shares: Shares, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns a mean over examples, also of what is no float."""
    if values[0].dtype.is_floating:
        return shares.mean(values)
    return values[0]


def _require_first_order() -> None:
    """Refuses gradients of gradients of sums over replicas.

    Raises:
        UnsupportedError: If a tape records that a gradient is computed.
    """
    if tensorflow_variables.is_recording():
        raise errors.UnsupportedError(
            "A gradient of a gradient goes through all_reduce(), as of a "
            "BatchNormalization with synchronized=True, and the tape of a "
            "replica does not see those of the others. Expected first "
            "derivatives. Received: a tape around tape.gradient(). Leave "
            "all_reduce() out, or train with replicas_per_worker=1."
        )


def _require_same_variables(
    optimizer: Any, variables: Sequence[Sequence[Any]]
) -> None:
    """Refuses updates of other variables in other replicas.

    Raises:
        UnsupportedError: If replicas have gradients of different variables.
    """
    first = [id(each) for each in variables[0]]
    if any([id(each) for each in others] != first for others in variables):
        raise errors.UnsupportedError(
            "The replicas of a worker update variables together. Expected "
            "gradients of the same variables in all of them. Received: "
            f"optimizer.apply() of {optimizer.name!r} with gradients of "
            f"{[len(each) for each in variables]} variables, replica by "
            "replica. See that no layer keeps tensors in Python objects that "
            "replicas share."
        )


def _meet(
    what: str,
    argument: Any,
    function: Callable[[Sequence[Any]], Sequence[Any]],
) -> Any:
    """Does something for all replicas; see `Replica.meet`.

    Raises:
        UnsupportedError: In an inner function, a condition or a loop.
    """
    replica = StepTrace.current().replica
    if replica is None or not replica.can_meet:
        raise errors.UnsupportedError(
            "The replicas of a worker change variables, and reduce values, "
            "together. Expected that outside of conditions, loops and inner "
            f"functions. Received: {what} inside of one. Move it out (remove "
            "@tf.function from the train_step, or from the function that "
            "strategy.run() calls), or train with replicas_per_worker=1."
        )
    return replica.meet(what, argument, function)


def _require_summable(value: Any, *, is_mean: bool) -> None:
    """Refuses what cannot be added up.

    Raises:
        UnsupportedError: If the value is no tensor of numbers, or if the mean
            of integers is wanted.
    """
    is_number = isinstance(value, tf.Tensor) and (
        value.dtype.is_floating
        or value.dtype.is_complex
        or (value.dtype.is_integer and not is_mean)
    )
    if not is_number:
        raise errors.UnsupportedError(
            "all_reduce() over the replicas of a worker adds up tensors, and "
            "makes means of those that are no integers. Expected such a "
            f"tensor. Received: value={value!r}. Cast it, for example to "
            "float32."
        )
