"""Everything that is known about a step while it is traced.

Keras and TensorFlow call the variables of a step from the middle of code that
is not ours: a layer that looks up rows, an optimizer's `update_step`. They pass
no handle along, so `StepTrace.current` is how variables, lookups and updates
find the step that they are part of.
"""

import contextlib
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import Protocol

import tensorflow as tf

from tfps_plugin._compat import tensorflow_graphs as compat


class View(Protocol):
    """Stands in for a variable while an optimizer updates it."""

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the values seen."""

    def read(self) -> tf.Tensor:
        """Returns the values seen, as of the last assignment."""

    def assign(self, method: str, value: Any) -> None:
        """Assigns, adds or subtracts.

        Args:
            method: `"assign"`, `"assign_add"` or `"assign_sub"`.
            value: Dense, of the shape that is seen.
        """


class StepTrace:
    """The knowledge that the functions of one step share while they are traced.

    A function that is traced inside of another one, and the bodies of loops
    and branches, belong to the step of the outermost function. That function's
    graph holds the step's `StepTrace`, and they end together.

    Outside of functions, where an update runs operation by operation, each
    thread has a `StepTrace` of its own, which knows views alone.

    Attributes:
        chief_waits: Whether the chief lets the step end before it changes a
            variable. `fit` does; a custom loop need not.

    Threading: used by the thread that traces the step alone.
    """

    def __init__(self) -> None:
        """Begins with no knowledge."""
        self.chief_waits = False
        self._views: Mapping[str, View] = {}
        self._held_locks: dict[Any, tf.Graph] = {}
        # By the function and the table: tensors of a function are of no use in
        # the functions around it and inside of it.
        self._lookups: dict[
            tuple[tf.Graph, str], list[tuple[tf.Tensor, tf.Tensor]]
        ] = {}

    @classmethod
    def current(cls) -> "StepTrace":
        """Returns the step that this thread traces, or runs eagerly."""
        if tf.executing_eagerly():
            return _eager.step
        return cls.of_graph(tf.compat.v1.get_default_graph())

    @classmethod
    def of_graph(cls, graph: tf.Graph) -> "StepTrace":
        """Returns the step that a function is part of.

        Args:
            graph: The function, which may be inside of others.
        """
        outermost = compat.outermost_function(graph)
        return compat.attached(outermost, "step_trace", cls)

    # Views.

    @contextlib.contextmanager
    def viewing(self, views: Mapping[str, View]) -> Iterator[None]:
        """Puts views in the place of variables, beside those that are there.

        Args:
            views: By the `_unique_id` of the variables. What a view does itself
                to a variable is done to the variable as it is.
        """
        with self._seeing({**self._views, **views}):
            yield

    def view_of(self, unique_id: str) -> View | None:
        """Returns the view that stands for a variable, if there is one.

        Args:
            unique_id: The variable's `_unique_id`.
        """
        view = self._views.get(unique_id)
        return None if view is None else _UnveiledView(self, view)

    @contextlib.contextmanager
    def _seeing(self, views: Mapping[str, View]) -> Iterator[None]:
        before = self._views
        self._views = views
        try:
            yield
        finally:
            self._views = before

    # Locks.

    @contextlib.contextmanager
    def holding(self, lock: Any, function: tf.Graph) -> Iterator[None]:
        """Notes that a lock is held in this context.

        Args:
            lock: A key of the lock.
            function: Where it is taken.
        """
        before = self._held_locks
        self._held_locks = {**before, lock: function}
        try:
            yield
        finally:
            self._held_locks = before

    def holder_of(self, lock: Any) -> tf.Graph | None:
        """Returns the function that has taken a lock; None: no function has.

        Args:
            lock: A key of the lock.
        """
        return self._held_locks.get(lock)

    @property
    def holds_a_lock(self) -> bool:
        """Whether any lock is held here."""
        return bool(self._held_locks)

    # Lookups.

    def add_lookup(
        self, table: Any, ids_U: tf.Tensor, rows_UD: tf.Tensor
    ) -> None:
        """Remembers a lookup of the current function.

        Args:
            table: The variable.
            ids_U: Distinct row numbers.
            rows_UD: Their rows.
        """
        if not tf.executing_eagerly():
            key = _lookup_key(table)
            self._lookups.setdefault(key, []).append((ids_U, rows_UD))

    def lookups_of(self, table: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns the lookups that the current function has made so far.

        Args:
            table: The variable.

        Returns:
            Distinct row numbers and their rows, for every lookup; nothing
            outside of functions, and nothing of functions inside or around
            this one.
        """
        if tf.executing_eagerly():
            return []
        return list(self._lookups.get(_lookup_key(table), []))


class _UnveiledView:
    """A view that reads and assigns while no variable is veiled by a view."""

    def __init__(self, step: StepTrace, view: View) -> None:
        self._step = step
        self._view = view

    @property
    def shape(self) -> tf.TensorShape:
        return self._view.shape

    def read(self) -> tf.Tensor:
        with self._step._seeing({}):
            return self._view.read()

    def assign(self, method: str, value: Any) -> None:
        with self._step._seeing({}):
            self._view.assign(method, value)


def _lookup_key(table: Any) -> tuple[tf.Graph, str]:
    return tf.compat.v1.get_default_graph(), table._unique_id


class _EagerSteps(threading.local):
    """The step of each thread outside of functions.

    The one knowledge of a step that hangs on a thread: an optimizer's
    `update_step` that runs operation by operation has no graph, and reads
    variables without a handle.
    """

    def __init__(self) -> None:
        self.step = StepTrace()


_eager = _EagerSteps()
