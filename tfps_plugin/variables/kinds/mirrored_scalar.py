"""Scalars that every step reads: step counters and learning rates.

If workers read such a number from its ps, that ps would answer every worker in
every step, and the other ps would wait for it. Here the ps keeps the exact
value, and workers read copies of their own. The exception is an optimizer's
step number, which travels with the weights.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.chief.chief_reads import on_the_chief
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.methods import self_assignment
from tfps_plugin.variables.per_worker.lane_copies import LaneCopies
from tfps_plugin.variables.per_worker.lane_tallies import LaneTallies
from tfps_plugin.variables.saving import apart
from tfps_plugin.variables.step_trace import StepTrace

_OPERATIONS = {
    "assign": tf.raw_ops.AssignVariableOp,
    "assign_add": tf.raw_ops.AssignAddVariableOp,
    "assign_sub": tf.raw_ops.AssignSubVariableOp,
}


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
        read = self._weakly(_read_from_ps)
        self._copies = LaneCopies(name, dtype, read)
        self._tallies = LaneTallies(name, dtype, read)
        self._count: Any = None

    def adopt(self, copy: RemoteVariable) -> None:
        """See `RemoteVariable.adopt`; lanes keep their copies."""
        super().adopt(copy)
        self._count = None

    # Its handles in functions.

    @property
    def handle(self) -> tf.Tensor:
        """In functions, the handle of the caller's copy."""
        graph = compat.function_graph()
        if graph is None or tensorflow_saving.is_saving_model():
            return self.own_handle
        exchange = StepTrace.current().exchange
        if exchange is not None and exchange.reads_exactly:
            # A step that waits for the others reads what they have changed.
            return self._exact_handle
        return self._lane_handle("copy", lambda mine: mine._copies.handle())

    def _lane_handle(
        self, kind: str, look_up: Callable[["MirroredScalar"], tf.Tensor]
    ) -> tf.Tensor:
        """Returns the handle of something that each lane has, in functions.

        Args:
            kind: The thing, such as its copy.
            look_up: Finds it when the function is called; not used if the
                function has the handle already. A function has only one, by
                which TensorFlow orders reads and writes.
        """
        return compat.capture_at_call_time(
            compat.function_graph(),
            self._weakly(look_up),
            compat.LateBoundHandleSpec(self.own_handle),
            key=(f"tfps-{kind}", self._unique_id),
        )

    @property
    def _exact_handle(self) -> tf.Tensor:
        """The handle of the value on the ps, in functions too."""
        return LateBoundVariable.handle.__get__(self)

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
        copy = self._lane_handle(
            "copy", lambda mine: mine._copies.handle_to_set()
        )
        with compat.clear_device(), tf.device(self.device):
            value = compat.read_resource(self._exact_handle, self._dtype)
        # Updates get it from the caller: a ps never asks another ps.
        with compat.clear_device(), tf.device(graph_checks.CPU):
            value = tf.identity(value)
        with compat.clear_device():
            tf.raw_ops.AssignVariableOp(resource=copy, value=value)
        return value

    # Recovery after its ps was replaced.

    @property
    def outlives_ps(self) -> bool:
        """True if copies are better than a checkpoint, and the value may fall.

        Set it before the first function is traced. Steps then have to note
        their number (`note_step`).
        """
        return self._copies.are_dated

    @outlives_ps.setter
    def outlives_ps(self, outlives_ps: bool) -> None:
        self._copies.are_dated = outlives_ps

    @property
    def only_grows(self) -> bool:
        """True if steps have changed it, and only by additions."""
        return self._copies.are_changed and self._copies.only_grow

    def note_step(self, number: tf.Tensor) -> None:
        """Notes the step in which the caller has just set it; in functions.

        Args:
            number: The step's number, a scalar of this scalar's dtype. Later
                steps have larger numbers, whichever lane runs them.
        """
        graph = compat.function_graph()
        if graph is None or tensorflow_saving.is_saving_model():
            return
        step = self._lane_handle(
            "step", lambda mine: mine._copies.step_handle()
        )
        with compat.clear_device():
            # A step that fails must not note its number without its value.
            is_set = compat.read_resource(self.handle, self._dtype)
            with tf.control_dependencies([is_set]):
                tf.raw_ops.AssignVariableOp(resource=step, value=number)

    def newest_copy(self) -> tf.Tensor | None:
        """Returns a lower bound of the value that a lost ps held.

        With `outlives_ps`, the value may have fallen: the result is then the
        copy that was set in the latest step.

        Returns:
            A value in this process; None if no lane that is alive, nor the
            chief, knows one.
        """
        if self.outlives_ps:
            newest = self._copies.of_latest_step()
        else:
            known = [*self._copies.known(), self._tallies.total()]
            newest = max((n for n in known if n is not None), default=None)
        return None if newest is None else tf.constant(newest, self._dtype)

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
        self._copies.forget()
        self._tallies.forget()

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
        self._copies.note_change(grows=True)
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
        trace = StepTrace.current()
        is_seen = trace.view_of(self._unique_id) is not None
        if trace.exchange is not None and not is_seen:
            trace.exchange.assign(self, method, value)
            return self
        if method == "assign":
            delta = self_assignment.as_addition(self, value)
            if delta is not None and not is_seen:
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
        if on_the_chief():
            steps_in_flight.finish_synchronous()
        with compat.clear_device(), tf.device(self.device):
            operation(resource=self._exact_handle, value=value)
        if compat.function_graph() is None:
            self._forget_copies()
            return self
        self._copies.note_change(
            grows=method == "assign_add" and _is_known_not_to_be_negative(value)
        )
        with compat.clear_device():
            if self._copies.only_grow:
                self._add_to_copy(value)
            else:
                operation(resource=self.handle, value=value)
        return self

    def _add_to_copy(self, value: tf.Tensor) -> None:
        """Adds to the caller's copy, and to its tally; in functions."""
        tally = self._lane_handle("tally", lambda mine: mine._tallies.handle())
        for handle in (self.handle, tally):
            tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)


def _read_from_ps(variable: MirroredScalar) -> tf.Tensor:
    """Reads the value on the ps."""
    return compat.read_resource(variable.own_handle, variable.dtype)


def _is_known_not_to_be_negative(value: tf.Tensor) -> bool:
    known = tf.get_static_value(value)
    return known is not None and bool(known >= 0)
