"""Scheduled calls: tracing functions and binding their arguments."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.inputs import captured_inputs
from tfps_plugin.inputs.per_worker_values import PerWorkerValues

_PolymorphicFunction = tf.types.experimental.PolymorphicFunction
_ConcreteFunction = tf.types.experimental.ConcreteFunction

Scope = Callable[[], contextlib.AbstractContextManager[Any]]
# Turns a concrete function into a callable that runs it on a worker.
Prepare = Callable[[Any], Callable[..., Any]]
# Types whose values never change.
_PYTHON_VALUES = (bool, int, float, complex, str, bytes)
# Never modified.
_NO_KWARGS: dict[str, Any] = {}


class Call:
    """A scheduled function with its arguments.

    A lane calls it: each `PerWorkerValues` is then replaced by the value of
    the lane's worker. It is a single object, not a nest of Python closures,
    because many thousands may wait and Python's garbage collector visits each.

    Threading: immutable.

    Attributes:
        concrete: The concrete function that it calls, as it was traced; None
            if it calls a Python callable.
    """

    __slots__ = (
        "_args",
        "_function",
        "_is_per_worker",
        "_kwargs",
        "_of",
        "concrete",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        of: Callable[..., Any],
        is_per_worker: bool,
        concrete: Any = None,
    ) -> None:
        """Creates a call.

        Args:
            function: The callable.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            of: The function that the user scheduled.
            is_per_worker: Whether the arguments contain `PerWorkerValues`.
            concrete: The concrete function that it calls in the end; None: a
                Python callable.
        """
        self.concrete = concrete
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._of = of
        self._is_per_worker = is_per_worker

    def __call__(self) -> Any:
        """Makes the call and returns its result."""
        args, kwargs = self._args, self._kwargs
        if self._is_per_worker:
            args, kwargs = tf.nest.map_structure(
                _of_this_worker, (args, kwargs)
            )
        return self._function(*args, **kwargs)

    @property
    def pinned_workers(self) -> frozenset[int]:
        """Indices of the workers on which it places operations."""
        found: frozenset[int] = getattr(
            self._function, "pinned_workers", frozenset()
        )
        return found

    def has_arguments_of(self, other: "Call") -> bool:
        """Returns whether both calls have the same arguments.

        Args:
            other: A call of the same concrete function.

        Returns:
            True if they have the same objects, or equal Python values. Tensors
            and arrays with equal elements are not the same.
        """
        own, theirs = (
            tf.nest.flatten((call._args, call._kwargs))
            for call in (self, other)
        )
        return len(own) == len(theirs) and all(map(_is_same, own, theirs))

    @property
    def name(self) -> str:
        """Name of the function that the user scheduled."""
        return getattr(self._of, "__name__", None) or type(self._of).__name__

    def __str__(self) -> str:
        """Returns the name, with the dtypes and shapes of arguments."""
        leaves = tf.nest.flatten((self._args, self._kwargs))
        return f"{self.name}({', '.join(map(_describe, leaves))})"


def bind(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    scope: Scope,
    prepare: Prepare,
) -> Call:
    """Prepares a call that any lane can make.

    A `tf.function` is traced here, on the caller's thread and under no device,
    so that all workers share one trace: a trace keeps the device that it was
    made under, and a call under another device traces again. TensorFlow's own
    cache finds the trace that fits the arguments, in about 25 us. Under
    `tf.config.run_functions_eagerly(True)` the function's Python function is
    called instead.

    Args:
        function: A `tf.function`, a concrete function or a Python callable.
        args: Its positional arguments, a list or tuple, or None.
        kwargs: Its keyword arguments, or None.
        scope: Returns the context manager in which functions are traced.
        prepare: Returns a callable for lanes in place of a concrete function.

    Returns:
        The call, for a lane's thread.

    Raises:
        TypeError: If `function` is not callable.
        InputError: If an argument is a dataset or iterator of the chief.
        ValueError: If an argument is a `RemoteValue`, or a `PerWorkerValues`
            that `tf.function` cannot be traced with.
    """
    if not callable(function):
        raise TypeError(
            "ClusterCoordinator schedules functions; expected a "
            "tf.function, a concrete function or a Python callable. Received: "
            f"fn={function!r}"
        )
    args = tuple(args) if args is not None else ()
    # Calls without keyword arguments share one dictionary: there may be many
    # thousands of calls.
    kwargs = dict(kwargs) if kwargs else _NO_KWARGS
    leaves = tf.nest.flatten((args, kwargs)) if args or kwargs else ()
    has_per_worker_values = any(
        isinstance(leaf, PerWorkerValues) for leaf in leaves
    )
    for leaf in leaves:
        if isinstance(leaf, RemoteValue):
            _refuse_remote_value(leaf)
        captured_inputs.refuse_argument(leaf)
    scheduled = function
    if isinstance(function, _PolymorphicFunction) and (
        tf.config.functions_run_eagerly()
    ):
        # Decided now: the setting may differ when the call is made.
        function = function.python_function
    if isinstance(function, _PolymorphicFunction):
        traced = _concrete(function, args, kwargs, has_per_worker_values, scope)
        kwargs = kwargs | _missing_defaults(function, traced, len(args), kwargs)
        function = traced
    concrete = None
    if isinstance(function, _ConcreteFunction):
        concrete = function
        function = prepare(function)
    return Call(
        function,
        args,
        kwargs,
        of=scheduled,
        is_per_worker=has_per_worker_values,
        concrete=concrete,
    )


def _describe(leaf: Any) -> str:
    if isinstance(leaf, tf.Tensor | tf.Variable):
        return f"{leaf.dtype.name}{leaf.shape.as_list()}"
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return type(leaf).__name__


def _is_same(leaf: Any, other: Any) -> bool:
    if leaf is other:
        return True
    return (
        type(leaf) is type(other)
        and isinstance(leaf, _PYTHON_VALUES)
        and bool(leaf == other)
    )


def _of_this_worker(leaf: Any) -> Any:
    return leaf.current() if isinstance(leaf, PerWorkerValues) else leaf


def _concrete(
    function: tf.types.experimental.PolymorphicFunction,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    has_per_worker_values: bool,
    scope: Scope,
) -> tf.types.experimental.ConcreteFunction:
    """Returns the trace of the function that fits the arguments."""
    if has_per_worker_values:
        args, kwargs = tf.nest.map_structure(_as_spec, (args, kwargs))
    with tensorflow_execution.unwrapped_errors(), scope(), tf.device(None):
        try:
            return function.get_concrete_function(*args, **kwargs)
        except errors.OptimizerNotBuiltError:
            # Now it is built.
            return function.get_concrete_function(*args, **kwargs)


def _missing_defaults(
    function: tf.types.experimental.PolymorphicFunction,
    concrete: tf.types.experimental.ConcreteFunction,
    num_args: int,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Returns the defaults that have to be passed to a trace.

    A trace takes every argument that it was made with, also those that the
    caller left to their defaults.
    """
    expected = list(concrete.function_type.parameters.values())
    if len(expected) == num_args + len(kwargs):
        return {}
    own = inspect.signature(function.python_function).parameters
    return {
        each.name: own[each.name].default
        for each in expected[num_args:]
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and each.name not in kwargs
        and each.name in own
        and own[each.name].default is not inspect.Parameter.empty
    }


def _as_spec(leaf: Any) -> Any:
    if not isinstance(leaf, PerWorkerValues):
        return leaf
    if leaf.type_spec is None:
        raise ValueError(
            "A tf.function cannot be traced with per-worker values of unknown "
            "type; expected values with a type_spec, such as "
            "iter(coordinator.create_per_worker_dataset(...)). Received: "
            f"{leaf!r}. Pass type_spec when you create them, or schedule a "
            "plain Python callable."
        )
    return leaf.type_spec


def _refuse_remote_value(leaf: RemoteValue) -> None:
    # A closure may run on any worker, and again on another one. The result may
    # be on a different worker by then, or lost.
    raise ValueError(
        "A RemoteValue cannot be an argument of a scheduled function; "
        "expected tensors, Python values or per-worker values. Received: "
        f"{leaf!r}. What to do: (1) pass remote_value.fetch(); (2) make both "
        "calls in one scheduled function; or (3) keep the result in a "
        "variable."
    )
