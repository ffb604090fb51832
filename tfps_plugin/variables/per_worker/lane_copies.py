"""Copies of a number, one for each lane, on the worker that the lane drives."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.per_worker.lane_tallies import number_in
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident

# Maximum age of a lane's knowledge of the others' additions, once training is
# under way.
_MAX_AGE_SECONDS = 0.05
# The same for functions that ask the ps themselves. It matters for those that
# could have asked, but did not, such as a loop without iterations.
_MAX_AGE_OF_ASKING_SECONDS = 5.0
# In this many first calls, a few steps more or less make a difference: in
# Adam's bias correction, or in a warm-up.
_FIRST_CALLS = 1000
# The chief's number among the lanes.
_CHIEF = -1
# Number before all steps: the lane has not set its copy in any step.
_NO_STEP = -1


@dataclasses.dataclass
class _Copy:
    """The copy that one lane reads.

    Attributes:
        variable: The copy, on the worker.
        refreshed_at: Time at which it last took in the changes of others, in
            seconds of the monotonic clock.
        step: The step in which the lane last set the copy, on the same device;
            None unless steps are noted (`LaneCopies.are_dated`).
    """

    variable: RemoteVariable
    refreshed_at: float
    step: RemoteVariable | None = None


class LaneCopies:
    """The copies that all lanes, and functions of the chief, read.

    A copy has all changes of its own lane; whoever changes the number in a
    function also changes the copy. `handle` brings in those of others.

    Attributes:
        are_dated: Whether each copy knows the step that last set it. Set it
            before the first function is traced.
        are_changed: Whether functions change the number.
        only_grow: Whether they only add to it.

    Guarded by `_lock`: the value that the chief last read from the ps, and the
    number of calls. No operation runs while holding it.
    """

    def __init__(
        self, name: str, dtype: tf.DType, read: Callable[[], tf.Tensor]
    ) -> None:
        """Begins without copies.

        Args:
            name: Name of the number, for messages.
            dtype: Dtype of the number.
            read: Reads the number.
        """
        self.are_dated = False
        self.are_changed = False
        self.only_grow = True
        self._name = name
        self._dtype = dtype
        self._read = read
        self._resident: WorkerResident[_Copy] = WorkerResident(
            self._build, per_lane=True
        )
        self._of_chief: _Copy | None = None
        # `_num_forgotten` when the chief's copy was made or refreshed.
        self._chief_num_forgotten = 0
        self._lock = threading.Lock()
        # A NumPy number; see `_refresh`.
        self._known: Any = None
        self._known_since = 0.0
        self._num_forgotten = 0
        self._calls = 0
        self._calling_lanes: set[int] = set()

    def note_change(self, *, grows: bool) -> None:
        """Notes that a function which is being traced changes the number.

        Args:
            grows: Whether it adds to it.
        """
        self.are_changed = True
        self.only_grow = self.only_grow and grows

    def handle(self, max_age_seconds: float | None = None) -> tf.Tensor:
        """Returns the handle of the calling lane's, or the chief's, copy.

        Args:
            max_age_seconds: Maximum age of its knowledge of others; None for
                the default.
        """
        context = dispatch_context.current()
        if context is None:
            copy = self._copy_of_chief(max_age_seconds or 0.0)
        else:
            copy = self._resident.get()
            if self.are_changed:
                self._bring_up_to_date(copy, context, max_age_seconds)
        return copy.variable.own_handle

    def handle_to_set(self) -> tf.Tensor:
        """Returns the copy's handle, for functions that refresh the copy."""
        return self.handle(_MAX_AGE_OF_ASKING_SECONDS)

    def step_handle(self) -> tf.Tensor:
        """Returns the handle of the step that last set the copy."""
        if dispatch_context.current() is not None:
            copy = self._resident.get()
        else:
            copy = self._of_chief or self._copy_of_chief(0.0)
        if copy.step is None:
            raise errors.InternalError(
                f"Steps of {self._name!r} are noted, but a copy was made "
                "before `are_dated` was set. Expected it to be set first. "
                f"Received: are_dated={self.are_dated}."
            )
        return copy.step.own_handle

    def known(self) -> list[Any]:
        """Returns all values that lanes that are alive, or the chief, know."""
        known = [] if self._known is None else [self._known]
        for copy in self._resident.existing():
            # Ignore workers that do not answer.
            with contextlib.suppress(tf.errors.OpError):
                known.append(number_in(copy.variable))
        return known

    def of_latest_step(self) -> Any:
        """Returns the copy that was set in the latest step, if they are dated.

        Returns:
            A NumPy number; None if no lane that is alive has one.
        """
        dated = []
        for copy in self._resident.existing():
            with contextlib.suppress(tf.errors.OpError):
                step = _NO_STEP if copy.step is None else number_in(copy.step)
                dated.append(
                    (step, copy.refreshed_at, number_in(copy.variable))
                )
        return max(dated)[-1] if dated else None

    def forget(self) -> None:
        """Starts over, because the number was set to another value."""
        self._resident.forget()
        with self._lock:
            self._known = None
            self._num_forgotten += 1

    def _bring_up_to_date(
        self,
        copy: _Copy,
        context: DispatchContext,
        max_age: float | None,
    ) -> None:
        """Takes in the changes of other lanes, if it is time.

        Args:
            copy: The copy of the calling lane.
            context: The dispatch context of the calling lane.
            max_age: Maximum age of the lane's knowledge, in seconds; None for
                the default.
        """
        now = time.monotonic()
        with self._lock:
            self._calls += 1
            self._calling_lanes.add(context.lane_index)
            is_alone = len(self._calling_lanes) == 1
            is_early = self._calls <= _FIRST_CALLS
        if max_age is None:
            max_age = 0.0 if is_early else _MAX_AGE_SECONDS
        if is_alone or 0.0 <= now - copy.refreshed_at <= max_age != 0.0:
            return
        self._refresh(copy.variable, self._value_since(now - max_age, now))
        copy.refreshed_at = now

    def _copy_of_chief(self, max_age_seconds: float) -> _Copy:
        """Returns the copy for functions that the chief calls, as in predict.

        Args:
            max_age_seconds: Maximum age of its knowledge of the lanes.
        """
        now = time.monotonic()
        with self._lock:
            # The chief may change it, too: no lane is alone any more.
            self._calling_lanes.add(_CHIEF)
            num_forgotten = self._num_forgotten
        copy = self._of_chief
        if copy is None:
            copy = self._new_copy("/device:CPU:0")
        else:
            if num_forgotten == self._chief_num_forgotten and (
                not self.are_changed
                or now - copy.refreshed_at < max_age_seconds
            ):
                # An eager step calls a function, which need not ask the ps.
                return copy
            copy.variable.assign(self._read(), read_value=False)
            copy.refreshed_at = now
        self._of_chief = copy
        self._chief_num_forgotten = num_forgotten
        return copy

    def _build(self, context: DispatchContext) -> _Copy:
        return self._new_copy(context.cpu_device)

    def _new_copy(self, device: str) -> _Copy:
        now = time.monotonic()
        with tf.init_scope(), compat.clear_device():
            copy = self._scalar_on(device, "")
            step = None
            with tf.device(device):
                copy.assign(self._read())
                if self.are_dated:
                    step = self._scalar_on(device, "/step")
                    step.assign(tf.constant(_NO_STEP, self._dtype))
        return _Copy(copy, now, step)

    def _scalar_on(self, device: str, suffix: str) -> RemoteVariable:
        return RemoteVariable(
            device,
            tf.TensorShape([]),
            self._dtype,
            self._name + suffix,
            trainable=False,
        )

    def _value_since(self, earliest: float, now: float) -> Any:
        """Returns a recent value; one read of the ps serves all lanes."""
        with self._lock:
            if self._known is not None and self._known_since >= earliest:
                return self._known
            num_forgotten = self._num_forgotten
        value = self._read().numpy()
        with self._lock:
            # Otherwise the chief has assigned another value since we asked.
            if num_forgotten == self._num_forgotten:
                self._known, self._known_since = value, now
        return value

    def _refresh(self, copy: RemoteVariable, number: Any) -> None:
        # Each lane has to make a tensor of its own: once TensorFlow has begun
        # to send a tensor to a worker, another thread's operation assumes that
        # it is there, and fails if it runs first ("Unable to find the relevant
        # tensor remote_handle").
        # The operation below sends it, and lets other threads run. If it were
        # made on the worker, this whole process would wait for the worker.
        with compat.clear_device(), tf.device(graph_checks.CPU):
            value = tf.constant(np.asarray(number), self._dtype)
        with compat.clear_device(), tf.device(copy.device):
            if self.only_grow:
                # Keep what this lane has added since the value was read.
                own = compat.read_resource(copy.own_handle, self._dtype)
                value = tf.maximum(own, value)
            copy.assign(value, read_value=False)
