"""Changes of a resource that the program makes while workers run steps."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.chief.chief_reads import on_the_chief
from tfps_plugin.variables.methods import self_assignment
from tfps_plugin.variables.methods.assign_methods import AssignMethods
from tfps_plugin.variables.methods.scatter_methods import ScatterMethods
from tfps_plugin.variables.methods.scatter_methods import refuse_in_update
from tfps_plugin.variables.step_trace import StepTrace

_CHANGES = {"assign_add": tf.add, "assign_sub": tf.subtract}


class ResourceChanges(AssignMethods, ScatterMethods, compat.ResourceVariable):
    """A resource variable that the program changes beside the steps.

    On the chief, a change first waits for the steps in flight.
    """

    @property
    def _home(self) -> str:
        """The device of the handles that calls use; "" for the worker's own."""
        return ""

    # Steps that its rows have yet to see, a `caught_up_shard._UnseenSteps`.
    unseen_steps: Any = None

    def finish_steps(self) -> None:
        """Brings the variable to its state between two steps.

        The chief calls it before it reads or assigns the variable.
        """
        steps_in_flight.finish()
        if self.unseen_steps is not None:
            self.unseen_steps.settle()

    def _assign_by(
        self, method: str, value: Any, name: str | None, read_value: bool
    ) -> Any:
        """Assigns, adds or subtracts a value.

        In a function, a value that depends on the variable itself is computed
        on the ps, so that no worker undoes what another one assigns
        (`self_assignment`). Additions are atomic.
        """
        if self._assigned_through_view(method, value):
            return self
        exchange = StepTrace.current().exchange
        if exchange is not None and self._home:
            exchange.assign(self, method, value)
            return self if read_value else tf.no_op()
        if self._is_computed_on_ps():
            done = (
                self_assignment.assign(self, value)
                if method == "assign"
                else self_assignment.change(self, value, _CHANGES[method])
            )
            if done is not None:
                return self._lazy_read(done) if read_value else done
        with self.beside_steps(value) as value:
            return getattr(compat.ResourceVariable, method)(
                self, value, name=name, read_value=read_value
            )

    def _is_computed_on_ps(self) -> bool:
        """True if the ps repeats computations on the variable's own value.

        A SavedModel runs without a ps. And the stored rows of a table that
        catches up differ from those that the computation has read.
        """
        return (
            not tensorflow_saving.is_saving_model()
            and self.unseen_steps is None
        )

    def _scatter(
        self,
        method: str,
        rows: tf.IndexedSlices,
        use_locking: bool,
        name: str | None,
    ) -> Any:
        self.gather_own_value()
        with self.beside_steps(rows) as rows:
            change = getattr(compat.ResourceVariable, method)
            return change(self, rows, use_locking, name)

    def _scatter_nd(
        self, method: str, indices: Any, updates: Any, name: str | None
    ) -> Any:
        self.gather_own_value()
        updates = tf.convert_to_tensor(updates, self._dtype)
        with self.beside_steps((indices, updates)) as (indices, updates):
            change = getattr(compat.ResourceVariable, method)
            return change(self, indices, updates, name)

    def _strided_slice_assign(
        self, *args: Any, value: Any, **kwargs: Any
    ) -> Any:
        """Assigns a slice: `variable[2:4].assign(value)`."""
        refuse_in_update(self, "assign of a slice")
        self.gather_own_value()
        value = tf.convert_to_tensor(value, self._dtype)
        with self.beside_steps((value,)) as (value,):
            return super()._strided_slice_assign(*args, value=value, **kwargs)

    def count_up_to(self, limit: Any) -> Any:
        """Counts up to a limit, as `tf.Variable.count_up_to`."""
        refuse_in_update(self, "count_up_to")
        self.gather_own_value()
        count = super().count_up_to
        if tf.executing_eagerly() and self._dtype in (tf.int32, tf.int64):
            # TensorFlow cannot run this operation eagerly on another task.
            return tf.function(lambda: count(limit)).get_concrete_function()()
        return count(limit)

    def gather_own_value(self) -> None:
        """Puts the whole value into its resource before a partial change."""

    @contextlib.contextmanager
    def beside_steps(self, given: Any) -> Iterator[Any]:
        """Context in which the program itself changes the variable.

        Args:
            given: The value, the rows, or a tuple of tensors to change it by.

        Yields:
            `given`; no step interferes inside the context.
        """
        # A single number, such as a learning rate, is meant for later steps.
        if on_the_chief():
            if self._shape.rank != 0:
                self.finish_steps()
            else:
                steps_in_flight.finish_synchronous()
        yield given

    def _assigned_through_view(self, method: str, value: Any) -> bool:
        view = StepTrace.current().view_of(self._unique_id)
        if view is None:
            return False
        value = tf.convert_to_tensor(value, self.dtype)
        view.assign(method, value)
        return True
