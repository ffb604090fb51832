"""What a scheduled call is given on the worker that it runs on."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.inputs import captured_inputs
from tfps_plugin.inputs.per_worker_values import PerWorkerValues

_PolymorphicFunction = tf.types.experimental.PolymorphicFunction
_ConcreteFunction = tf.types.experimental.ConcreteFunction

Scope = Callable[[], contextlib.AbstractContextManager[Any]]
# From a concrete function to what calls it on a worker.
Prepare = Callable[[Any], Callable[..., Any]]
# Never changed.
_NO_KWARGS: dict[str, Any] = {}


class Call:
    """A scheduled function with its arguments.

    Calling it makes the call, on a lane: each `PerWorkerValues` is replaced by
    the value of that lane's worker. One object in place of closures of Python:
    many thousands may wait, and Python's garbage collector looks at each.

    Threading: immutable.
    """

    __slots__ = (
        "_args",
        "_function",
        "_is_per_worker",
        "_kwargs",
        "_of",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        of: Callable[..., Any],
        is_per_worker: bool,
    ) -> None:
        """Creates a call.

        Args:
            function: What is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            of: The function that the user scheduled.
            is_per_worker: Whether an argument is one, or contains one.
        """
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

    def __str__(self) -> str:
        """What it is, for people: names, dtypes and shapes."""
        name = getattr(self._of, "__name__", None) or type(self._of).__name__
        leaves = tf.nest.flatten((self._args, self._kwargs))
        return f"{name}({', '.join(map(_describe, leaves))})"


def bind(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    scope: Scope,
    prepare: Prepare,
) -> Call:
    """Prepares a call so that any lane can make it.

    A `tf.function` is traced here, on the caller's thread and under no
    device, so that there is one trace for all workers: a function that is
    traced under a device keeps that device, and one that is called under
    another device is traced again. Which of its traces fits the arguments is
    asked of TensorFlow each time; its own cache answers in about 25 us.
    Under `tf.config.run_functions_eagerly(True)` it is called as the Python
    function that it was made of.

    Args:
        function: A `tf.function`, a concrete function or a Python callable.
        args: Its positional arguments, a list or tuple, or None.
        kwargs: Its keyword arguments, or None.
        scope: Returns the context manager that functions are traced in.
        prepare: Returns what is called in the place of a concrete function.

    Returns:
        The call, to be made on a lane's thread.

    Raises:
        TypeError: If `function` cannot be called.
        InputError: If an argument is a dataset or iterator of the chief.
        ValueError: If an argument is a `RemoteValue`, or a `PerWorkerValues`
            that `tf.function` cannot be traced with.
    """
    if not callable(function):
        raise TypeError(
            "Cannot schedule what cannot be called; expected a tf.function, "
            "a concrete function or a Python callable. Received: "
            f"fn={function!r}"
        )
    args = tuple(args) if args is not None else ()
    # The same for all calls without any: there may be many thousands of calls.
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
        # The program wants to see each operation. Asked now: when the call
        # is made, it may want something else.
        function = function.python_function
    if isinstance(function, _PolymorphicFunction):
        concrete = _concrete(
            function, args, kwargs, has_per_worker_values, scope
        )
        kwargs = kwargs | _missing_defaults(
            function, concrete, len(args), kwargs
        )
        function = concrete
    if isinstance(function, _ConcreteFunction):
        function = prepare(function)
    return Call(
        function,
        args,
        kwargs,
        of=scheduled,
        is_per_worker=has_per_worker_values,
    )


def _describe(leaf: Any) -> str:
    if isinstance(leaf, tf.Tensor | tf.Variable):
        return f"{leaf.dtype.name}{leaf.shape.as_list()}"
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return type(leaf).__name__


def _of_this_worker(leaf: Any) -> Any:
    return leaf.current() if isinstance(leaf, PerWorkerValues) else leaf


def _concrete(
    function: tf.types.experimental.PolymorphicFunction,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    has_per_worker_values: bool,
    scope: Scope,
) -> tf.types.experimental.ConcreteFunction:
    """The trace of the function that fits the arguments."""
    if has_per_worker_values:
        args, kwargs = tf.nest.map_structure(_as_spec, (args, kwargs))
    with tensorflow_execution.unwrapped_errors(), scope(), tf.device(None):
        return function.get_concrete_function(*args, **kwargs)


def _missing_defaults(
    function: tf.types.experimental.PolymorphicFunction,
    concrete: tf.types.experimental.ConcreteFunction,
    num_args: int,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Defaults of the function that its trace has to be given.

    A trace takes every argument that it was made with, those that the caller
    left to their defaults as well.
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
            "type; expected values that know their type, such as "
            "iter(coordinator.create_per_worker_dataset(...)). Received: "
            f"{leaf!r}. Give them a type_spec, or schedule a plain Python "
            "callable."
        )
    return leaf.type_spec


def _refuse_remote_value(leaf: RemoteValue) -> None:
    # A closure may run on any worker, and again on another one: by then a
    # result that stayed on its own worker may be far away, or lost.
    raise ValueError(
        "A RemoteValue cannot be an argument of a scheduled function; "
        "expected tensors, Python values or per-worker values. Received: "
        f"{leaf!r}. Do one of these: (1) pass remote_value.fetch(); (2) do "
        "both calls in one scheduled function; (3) keep the result in a "
        "variable."
    )
