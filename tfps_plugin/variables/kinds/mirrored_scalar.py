"""Scalars that every step reads: step counters and learning rates.

If workers read such a number from its ps, that ps would answer every worker in
every step, and the other ps would wait for it. Here the ps keeps the exact
value, and workers read copies of their own. The exception is an optimizer's
step number, which travels with the weights.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.methods import self_assignment
from tfps_plugin.variables.per_worker.lane_tallies import LaneTallies
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident
from tfps_plugin.variables.saving import apart
from tfps_plugin.variables.step_trace import StepTrace

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


_OPERATIONS = {
    "assign": tf.raw_ops.AssignVariableOp,
    "assign_add": tf.raw_ops.AssignAddVariableOp,
    "assign_sub": tf.raw_ops.AssignSubVariableOp,
}


@dataclasses.dataclass
class _Copy:
    """The copy that one lane reads.

    Attributes:
        variable: The copy, on the worker.
        refreshed_at: Time at which it last took in the changes of others, in
            seconds of the monotonic clock.
        step: The step in which the lane last set the copy, on the same device;
            None unless steps are noted (`note_step`).
    """

    variable: RemoteVariable
    refreshed_at: float
    step: RemoteVariable | None = None


class MirroredScalar(RemoteVariable):
    """A scalar on a ps, with a copy for every lane of every worker.

    In functions:

    - A read uses the lane's copy and costs no message. The copy has everything
      that this lane has added, and everything that others had added about
      50 ms before the function was called; in the first thousand calls, up to
      the call. With one lane it is exact.
    - `read_exactly` asks the ps, and brings the lane's copy up to date. In a
      function that asks the ps for weights anyway, this costs less than asking
      before each call.
    - `assign_add` and `assign_sub` change the value on the ps, atomically, and
      the lane's copy. Nothing is lost if a worker dies: the sum is on the ps.
      If the ps dies, lanes know what they have added (`LaneTallies`).
    - `assign` sets both; other lanes follow within 50 ms.
    - `take` counts: it hands out each number once.

    On the chief, a read is exact, and every function that is called after an
    assignment sees it.

    Guarded by `_lock`: the value that the chief last read from the ps, and the
    number of calls. No operation runs while holding it.
    """

    def __init__(
        self, device: str, dtype: tf.DType, name: str, **options: Any
    ) -> None:
        """Makes the scalar on `device`, without a value yet.

        Args:
            device: Full device name of the ps.
            dtype: Dtype of the number.
            name: Name shown to the user.
            **options: As for `RemoteVariable`.
        """
        super().__init__(device, tf.TensorShape([]), dtype, name, **options)
        self._resident: WorkerResident[_Copy] = WorkerResident(
            self._build_copy, per_lane=True
        )
        self._tallies = LaneTallies(name, dtype, self._weakly(_read_from_ps))
        self._lock = threading.Lock()
        # A NumPy number; see `_refresh`.
        self._known: Any = None
        self._known_since = 0.0
        self._num_forgotten = 0
        self._calls = 0
        self._calling_lanes: set[int] = set()
        self._is_changed_by_steps = False
        self._only_grows = True
        self._chief_copy: _Copy | None = None
        # `_num_forgotten` when the chief's copy was made or refreshed.
        self._chief_num_forgotten = 0
        self._count: Any = None

    # Its handles in functions.

    @property
    def handle(self) -> tf.Tensor:
        """In functions, the handle of the caller's copy."""
        graph = compat.function_graph()
        if graph is None or tensorflow_saving.is_saving_model():
            return self.own_handle
        return self._copy_handle(graph, type(self)._copy_now)

    def _copy_handle(
        self, graph: Any, look_up: Callable[["MirroredScalar"], tf.Tensor]
    ) -> tf.Tensor:
        """Returns the handle of the caller's copy, in functions.

        Args:
            graph: The function.
            look_up: Finds the copy when the function is called; not used if
                the function has the handle already. A function has only one,
                by which TensorFlow orders reads and writes.
        """
        return compat.capture_at_call_time(
            graph,
            self._weakly(look_up),
            compat.LateBoundHandleSpec(self.own_handle),
            key=("tfps-copy", self._unique_id),
        )

    @property
    def _exact_handle(self) -> tf.Tensor:
        """The handle of the value on the ps, in functions too."""
        return LateBoundVariable.handle.__get__(self)

    def _tally_handle(self, graph: Any) -> tf.Tensor:
        """Returns the handle of the caller's tally, in functions."""
        return compat.capture_at_call_time(
            graph,
            self._weakly(lambda variable: variable._tallies.handle()),
            compat.LateBoundHandleSpec(self.own_handle),
            key=("tfps-tally", self._unique_id),
        )

    def read_exactly(self) -> tf.Tensor:
        """Returns the exact value, where a function can get it at little cost.

        In a branch of a conditional, the function would have to wait for the
        ps once more, so the caller's copy is read instead. Elsewhere the
        request travels with those for weights, and the caller's copy is set to
        the answer.
        """
        graph = compat.function_graph()
        if (
            graph is None
            or compat.is_in_branch()
            or tensorflow_saving.is_saving_model()
            or StepTrace.current().view_of(self._unique_id) is not None
        ):
            return self.read_value()
        copy = self._copy_handle(graph, type(self)._copy_to_be_set)
        with compat.clear_device(), tf.device(self.device):
            value = compat.read_resource(self._exact_handle, self._dtype)
        # Updates get it from the caller: a ps never asks another ps.
        with compat.clear_device(), tf.device(graph_checks.CPU):
            value = tf.identity(value)
        with compat.clear_device():
            tf.raw_ops.AssignVariableOp(resource=copy, value=value)
        return value

    def _copy_to_be_set(self) -> tf.Tensor:
        """Returns the copy's handle, for functions that refresh the copy."""
        return self._copy_now(_MAX_AGE_OF_ASKING_SECONDS)

    def _copy_now(self, max_age_seconds: float | None = None) -> tf.Tensor:
        context = dispatch_context.current()
        if context is None:
            return self._copy_of_chief(max_age_seconds or 0.0)
        copy = self._resident.get()
        if self._is_changed_by_steps:
            self._bring_up_to_date(copy, context, max_age_seconds)
        return copy.variable.own_handle

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

    def _build_copy(self, context: DispatchContext) -> _Copy:
        return self._new_copy(context.cpu_device)

    def _new_copy(self, device: str) -> _Copy:
        now = time.monotonic()
        with tf.init_scope(), compat.clear_device():
            copy = self._scalar_beside(device, "")
            step = None
            with tf.device(device):
                copy.assign(compat.read_resource(self.own_handle, self._dtype))
                if self.outlives_ps:
                    step = self._scalar_beside(device, "/step")
                    step.assign(tf.constant(_NO_STEP, self._dtype))
        return _Copy(copy, now, step)

    def _scalar_beside(self, device: str, suffix: str) -> RemoteVariable:
        return RemoteVariable(
            device,
            self._shape,
            self._dtype,
            self._handle_name.removesuffix(":0") + suffix,
            trainable=False,
        )

    def _copy_of_chief(self, max_age_seconds: float) -> tf.Tensor:
        """Returns the copy for functions that the chief calls, as in predict.

        Args:
            max_age_seconds: Maximum age of its knowledge of the lanes.
        """
        now = time.monotonic()
        with self._lock:
            # The chief may change it, too: no lane is alone any more.
            self._calling_lanes.add(_CHIEF)
            num_forgotten = self._num_forgotten
        copy = self._chief_copy
        if copy is None:
            copy = self._new_copy("/device:CPU:0")
        else:
            if num_forgotten == self._chief_num_forgotten and (
                not self._is_changed_by_steps
                or now - copy.refreshed_at < max_age_seconds
            ):
                # An eager step calls a function, which need not ask the ps.
                return copy.variable.own_handle
            copy.variable.assign(
                compat.read_resource(self.own_handle, self._dtype),
                read_value=False,
            )
            copy.refreshed_at = now
        self._chief_copy = copy
        self._chief_num_forgotten = num_forgotten
        return copy.variable.own_handle

    def _value_since(self, earliest: float, now: float) -> Any:
        """Returns a recent value; one read of the ps serves all lanes."""
        with self._lock:
            if self._known is not None and self._known_since >= earliest:
                return self._known
            num_forgotten = self._num_forgotten
        value = compat.read_resource(self.own_handle, self._dtype).numpy()
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
            if self._only_grows:
                # Keep what this lane has added since the value was read.
                own = compat.read_resource(copy.own_handle, self._dtype)
                value = tf.maximum(own, value)
            copy.assign(value, read_value=False)

    # Recovery after its ps was replaced.

    # Whether the lanes' copies are better than a checkpoint, though the value
    # may fall. Set it before the first function is traced; steps then have to
    # note their number (`note_step`).
    outlives_ps = False

    @property
    def only_grows(self) -> bool:
        """True if steps have changed it, and only by additions."""
        return self._is_changed_by_steps and self._only_grows

    def note_step(self, number: tf.Tensor) -> None:
        """Notes the step in which the caller has just set it; in functions.

        Args:
            number: The step's number, a scalar of this scalar's dtype. Later
                steps have larger numbers, whichever lane runs them.
        """
        graph = compat.function_graph()
        if graph is None or tensorflow_saving.is_saving_model():
            return
        step = compat.capture_at_call_time(
            graph,
            self._weakly(type(self)._step_of_caller),
            compat.LateBoundHandleSpec(self.own_handle),
            key=("tfps-step", self._unique_id),
        )
        with compat.clear_device():
            # A step that fails must not note its number without its value.
            is_set = compat.read_resource(self.handle, self._dtype)
            with tf.control_dependencies([is_set]):
                tf.raw_ops.AssignVariableOp(resource=step, value=number)

    def _step_of_caller(self) -> tf.Tensor:
        if dispatch_context.current() is not None:
            copy = self._resident.get()
        else:
            if self._chief_copy is None:
                self._copy_of_chief(0.0)
            copy = self._chief_copy  # type: ignore[assignment]
        if copy.step is None:
            raise errors.InternalError(
                f"Steps of {self.name!r} are noted, but a copy was made before "
                "`outlives_ps` was set. Expected it to be set first. Received: "
                f"outlives_ps={self.outlives_ps}."
            )
        return copy.step.own_handle

    def newest_copy(self) -> tf.Tensor | None:
        """Returns a lower bound of the value that a lost ps held.

        With `outlives_ps`, the value may have fallen: the result is then the
        copy that was set in the latest step.

        Returns:
            A value in this process; None if no lane that is alive, nor the
            chief, knows one.
        """
        copies = self._resident.existing()
        if self.outlives_ps:
            return self._copy_of_latest_step(copies)
        known = [self._known, self._tallies.total()]
        for copy in copies:
            # Ignore workers that do not answer.
            with contextlib.suppress(tf.errors.OpError):
                known.append(_number(copy.variable))
        known = [number for number in known if number is not None]
        return tf.constant(max(known), self._dtype) if known else None

    def _copy_of_latest_step(self, copies: list[_Copy]) -> tf.Tensor | None:
        dated = []
        for copy in copies:
            with contextlib.suppress(tf.errors.OpError):
                step = _NO_STEP if copy.step is None else _number(copy.step)
                dated.append((step, copy.refreshed_at, _number(copy.variable)))
        return tf.constant(max(dated)[-1], self._dtype) if dated else None

    def catch_up(self, value: tf.Tensor | None) -> None:
        """Restores the newest known value, unless the present one is newer.

        Args:
            value: Result of `newest_copy`, from before the resource was made
                again.
        """
        self._forget_copies()
        if value is None:
            return
        now = tf.constant(
            compat.read_resource(self.own_handle, self._dtype).numpy()
        )
        if self.outlives_ps or value.numpy() > now.numpy():
            self.assign(value)

    def _forget_copies(self) -> None:
        self._resident.forget()
        self._tallies.forget()
        with self._lock:
            self._known = None
            self._num_forgotten += 1

    # Changes.

    def take(self) -> tf.Tensor:
        """Adds 1 atomically, and returns the value before.

        Returns:
            A number that no other caller gets, of the scalar's integer dtype.
        """
        if compat.function_graph() is None:
            if self._count is None:
                self._count = tf.function(
                    self._weakly(type(self)._count_up)
                ).get_concrete_function()
            number = self._count()
            self._forget_copies()
            return number
        number = self._count_up()
        self._is_changed_by_steps = True
        with compat.clear_device():
            self._add_to_copy(tf.ones([], self._dtype))
        return number

    def _count_up(self) -> tf.Tensor:
        """Counts up; only in functions: TensorFlow knows too little of handles
        of other tasks to run the operation eagerly."""
        with compat.clear_device(), tf.device(self.device):
            return tf.raw_ops.ResourceCountUpTo(
                resource=self._exact_handle,
                limit=self._dtype.max,
                T=self._dtype,
            )

    def _assign_by(
        self, method: str, value: Any, name: str | None, read_value: bool
    ) -> Any:
        """Assigns, or adds or subtracts by one atomic operation on the ps.

        In functions, assigning the scalar itself plus an addend becomes an
        atomic addition.
        """
        if method == "assign":
            delta = self_assignment.as_addition(self, value)
            view = StepTrace.current().view_of(self._unique_id)
            if delta is not None and view is None:
                return self.assign_add(delta)
        return self._change(method, _OPERATIONS[method], value)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """Serializes it as TensorFlow's checkpoints do any variable."""
        if apart.is_apart():
            return {tensorflow_saving.VARIABLE_VALUE_KEY: {}}

        def read() -> tf.Tensor:
            with tf.device(self.device):
                return compat.read_resource(self._exact_handle, self._dtype)

        value = tensorflow_saving.deferred_read(read, self._dtype, self.device)
        return {tensorflow_saving.VARIABLE_VALUE_KEY: value}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        """Restores it as TensorFlow's checkpoints do any variable."""
        if apart.is_apart():
            return None
        (value,) = restored_tensors.values()
        # Even while this is being traced: it is traced each time that it runs.
        self._forget_copies()
        self._change("assign", tf.raw_ops.AssignVariableOp, value)
        return tf.no_op() if compat.function_graph() is not None else None

    # In functions, the handle is that of a copy: other changes are not exact.

    def _scatter(self, method: str, *_: Any) -> Any:
        raise self._refusal(method)

    def _scatter_nd(self, method: str, *_: Any) -> Any:
        raise self._refusal(method)

    def count_up_to(self, limit: Any) -> Any:
        """Raises an error: use `assign_add`."""
        raise self._refusal(f"count_up_to({limit!r})")

    def _refusal(self, method: str) -> Exception:
        return errors.UnsupportedError(
            f"{method} on {self.name!r}: it is a number of which every worker "
            "has a copy; expected assign, assign_add or assign_sub. Received: "
            f"a variable of shape () and dtype {self._dtype.name}. Use one of "
            "these."
        )

    def _strided_slice_assign(
        self, *args: Any, value: Any, **kwargs: Any
    ) -> Any:
        """Assigns the number: `variable[...].assign(value)`."""
        return self.assign(tf.reshape(value, []))

    def _change(self, method: str, operation: Any, value: Any) -> Any:
        view = StepTrace.current().view_of(self._unique_id)
        value = tf.convert_to_tensor(value, self._dtype)
        if view is not None:
            view.assign(method, value)
            return self
        if tensorflow_saving.is_saving_model():
            # A SavedModel runs without a ps.
            operation(resource=self.handle, value=value)
            return self
        with compat.clear_device(), tf.device(self.device):
            operation(resource=self._exact_handle, value=value)
        if compat.function_graph() is None:
            self._forget_copies()
            return self
        self._is_changed_by_steps = True
        self._only_grows = (
            self._only_grows
            and method == "assign_add"
            and _is_known_not_to_be_negative(value)
        )
        with compat.clear_device():
            if self._only_grows:
                self._add_to_copy(value)
            else:
                operation(resource=self.handle, value=value)
        return self

    def _add_to_copy(self, value: tf.Tensor) -> None:
        """Adds to the caller's copy, and to its tally; in functions."""
        tally = self._tally_handle(compat.function_graph())
        for handle in (self.handle, tally):
            tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)


def _read_from_ps(variable: MirroredScalar) -> tf.Tensor:
    """Reads the value on the ps."""
    return compat.read_resource(variable.own_handle, variable.dtype)


def _number(variable: RemoteVariable) -> Any:
    value = compat.read_resource(variable.own_handle, variable.dtype)
    return value.numpy()


def _is_known_not_to_be_negative(value: tf.Tensor) -> bool:
    known = tf.get_static_value(value)
    return known is not None and bool(known >= 0)
