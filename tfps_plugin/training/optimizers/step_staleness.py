"""Staleness of the updates of one step: measured, and used as a divisor.

The divisor is that of Zhang et al., "Staleness-aware Async-SGD for Distributed
Deep Learning", IJCAI 2016: the learning rate of an update is divided by its
staleness.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.monitoring import staleness
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.training.optimizers import update_counts
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.update_lock import UpdateLock
from tfps_plugin.variables.updates.update_part import UpdatePart

_BOUNDARIES = [float(bound) for bound in staleness.LOWER_BOUNDS]
_COUNTS_UP = "ResourceCountUpTo"
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
# Optimizers whose update is not proportional to the learning rate, and why.
_NOT_PROPORTIONAL = {
    keras.optimizers.Adafactor: "it limits the learning rate by itself",
    keras.optimizers.Ftrl: "it computes weights anew from sums in which the "
    "learning rate must not change",
}


class StepStaleness:
    """Staleness of the updates of one `optimizer.apply`, while it is traced.

    The parameter servers compute it for themselves: nothing travels.

    Threading: only the thread that traces the step uses it.
    """

    def __init__(self, optimizer: Any, trace: StepTrace) -> None:
        """Finds out what the step needs of it.

        Args:
            optimizer: A built Keras optimizer of our strategy.
            trace: The knowledge of the step.
        """
        self._optimizer = optimizer
        consistency = getattr(
            compat.strategy_of(optimizer), "consistency", None
        )
        is_function = (
            tensorflow_variables.function_graph() is not None
            and not tensorflow_saving.is_saving_model()
        )
        is_asynchronous = (
            consistency is not None
            and not isinstance(consistency, Sync)
            and trace.exchange is None
            and trace.only_on is None
        )
        # A branch begins when its condition is known, and the sum of several
        # gradients is of weights of several moments.
        is_plain = not (
            tensorflow_variables.is_in_branch()
            or optimizer.gradient_accumulation_steps
        )
        # Only `fit` shows what was measured.
        self._measures = (
            is_function and is_asynchronous and is_plain and trace.chief_waits
        )
        self._scales = (
            is_function
            and is_asynchronous
            and getattr(consistency, "staleness_scaling", False)
        )
        if self._scales and not is_plain:
            raise _in_a_branch(optimizer)
        self._before: dict[int, tf.Tensor] = {}
        self._divisors: dict[int, tf.Tensor] = {}
        # The lock beside which updates are measured.
        self._measured: UpdateLock | None = None

    def read(self, parts: Sequence[UpdatePart]) -> None:
        """Reads the counts of the parameter servers, at the step's begin.

        Args:
            parts: All parts of the update.
        """
        if not (self._measures or self._scales):
            return
        locks = {id(part.lock): part.lock for part in parts if part.lock}
        for part in parts:
            if self._scales and part.lock is None:
                raise _not_on_a_ps(self._optimizer, part)
        if not locks:
            return
        if self._measures:
            self._measured = next(iter(locks.values()))
            if not self._scales:
                locks = {id(self._measured): self._measured}
        counts = update_counts.of(self._optimizer)
        for key, lock in locks.items():
            # As early as weights: it waits for nothing that the step computes.
            with (
                tf.control_dependencies(None),
                tensorflow_variables.clear_device(),
                tf.device(lock.device),
            ):
                handle = counts.number(self._optimizer, lock).handle
                self._before[key] = tensorflow_variables.read_resource(
                    handle, tf.int64
                )
            _read_first(self._before[key], handle, parts, lock)

    def count(self, lock: UpdateLock) -> None:
        """Counts an update, at the begin of its section.

        Args:
            lock: The lock, which is held.
        """
        before = self._before.get(id(lock))
        if before is None:
            return
        counts = update_counts.of(self._optimizer)
        with tensorflow_variables.clear_device(), tf.device(lock.device):
            now = tf.raw_ops.ResourceCountUpTo(
                resource=counts.number(self._optimizer, lock).handle,
                limit=tf.int64.max,
                T=tf.int64,
            )
            found = now - before
            if self._scales:
                self._divisors[id(lock)] = tf.maximum(found, 1)
            if lock is self._measured:
                histogram = counts.histogram(self._optimizer, lock).handle
                _note(histogram, found)

    def sent(self, learning_rate: Any) -> Any:
        """Returns a learning rate as the parts of an update take it.

        Args:
            learning_rate: A number, tensor or variable.
        """
        if not self._scales:
            return learning_rate
        return tf.convert_to_tensor(learning_rate)

    def scaled(self, part: UpdatePart, learning_rate: Any) -> Any:
        """Returns the learning rate for a part, under its lock.

        Args:
            part: The part.
            learning_rate: The learning rate of the optimizer.
        """
        if not self._scales:
            return learning_rate
        divisor = self._divisors[id(part.lock)]
        return learning_rate / tf.cast(divisor, learning_rate.dtype)

    def require_used(self, part: UpdatePart, learning_rate: Any) -> None:
        """Refuses an update without the learning rate that it was given.

        Args:
            part: The part that was updated.
            learning_rate: A result of `scaled`.

        Raises:
            UnsupportedError: If nothing was computed from it.
        """
        if self._scales and not learning_rate.consumers():
            name = type(self._optimizer).__name__
            raise errors.UnsupportedError(
                "staleness_scaling=True divides the learning rate that "
                "update_step() is given, and this one does not use it. "
                "Expected an optimizer that uses its argument learning_rate. "
                f"Received: optimizer={self._optimizer.name!r}, "
                f"variable={compat.path_of(part.owner)!r}. Use the argument in "
                f"{name}.update_step(), or train with tfps.Async()."
            )


def require_supported(optimizer: Any) -> None:
    """Refuses an optimizer whose updates cannot be scaled by staleness.

    Args:
        optimizer: A Keras optimizer of our strategy, perhaps a wrapper.

    Raises:
        UnsupportedError: If the strategy asks for it, and it cannot be right.
    """
    consistency = getattr(compat.strategy_of(optimizer), "consistency", None)
    if not getattr(consistency, "staleness_scaling", False):
        return
    reason = _reason_against(optimizer)
    if reason is None:
        return
    raise errors.UnsupportedError(
        "staleness_scaling=True is not supported with this optimizer: "
        f"{reason}. Expected an optimizer whose update is proportional to its "
        "learning rate, such as SGD or Adam, and is applied in every step. "
        f"Received: optimizer={type(optimizer).__name__}, "
        f"consistency={consistency}. Use another optimizer, or train with "
        "tfps.Async()."
    )


def _reason_against(optimizer: Any) -> str | None:
    if isinstance(optimizer, compat.MultiOptimizer):
        # It builds others, each of which is checked.
        return None
    for kind, reason in _NOT_PROPORTIONAL.items():
        if isinstance(optimizer, kind):
            return reason
    if hasattr(optimizer, "inner_optimizer"):
        return "it decides in each step whether to update"
    if optimizer.gradient_accumulation_steps:
        return (
            "with gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, an update has gradients "
            "of different staleness"
        )
    if compat.decays_weights_by_itself(optimizer):
        return "it decays weights in its own way"
    return None


def _in_a_branch(optimizer: Any) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        "staleness_scaling=True does not know when a step that updates in a "
        "branch of a condition has read its weights. Expected "
        "optimizer.apply() outside of tf.cond. Received: "
        f"optimizer={optimizer.name!r}, applied in a branch. Apply gradients "
        "in every step, or train with tfps.Async()."
    )


def _not_on_a_ps(optimizer: Any, part: UpdatePart) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        "staleness_scaling=True counts the updates of variables on parameter "
        "servers. Expected variables that were created in strategy.scope(). "
        f"Received: optimizer={optimizer.name!r}, "
        f"variable={compat.path_of(part.owner)!r} on {part.device!r}. Create "
        "it in the scope, or train with tfps.Async()."
    )


def _read_first(
    before: tf.Tensor,
    handle: tf.Tensor,
    parts: Sequence[UpdatePart],
    lock: UpdateLock,
) -> None:
    """Lets the step read weights no earlier than their count.

    An update that comes between both is then counted, rather than missed.

    Args:
        before: The count as it was read, which depends on nothing but an
            earlier update of the same step.
        handle: The handle of the count.
        parts: All parts of the update.
        lock: The lock to which the count belongs.
    """
    graph = before.graph
    numbers = {one.name: n for n, one in enumerate(graph.get_operations())}
    own = tensorflow_variables.in_graph(handle, graph).consumers()
    # Reads before an earlier update of the same step are of that update.
    first = max(
        (numbers[one.name] for one in own if one.type == _COUNTS_UP), default=-1
    )
    for part in parts:
        if part.lock is not lock or part.shard is None:
            continue
        shard = tensorflow_variables.in_graph(part.shard.handle, graph)
        for reader in shard.consumers():
            if reader.type in _READS and numbers[reader.name] > first:
                tensorflow_variables.run_after(reader, [before.op])


def _note(histogram: tf.Tensor, found: tf.Tensor) -> None:
    """Adds the staleness of an update to a vector; see `Staleness`."""
    bin_number = tf.raw_ops.Bucketize(input=found, boundaries=_BOUNDARIES)
    tf.raw_ops.ResourceScatterAdd(
        resource=histogram,
        indices=tf.stack([bin_number, staleness.SUM]),
        updates=tf.stack([tf.ones([], tf.int64), found]),
    )
    tf.raw_ops.ResourceScatterMax(
        resource=histogram, indices=staleness.LARGEST, updates=found
    )
