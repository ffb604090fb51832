"""What a scheduled call is given on the worker that it runs on."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.coordinator.remote_value import RemoteValue
from tfps_plugin.inputs.per_worker_values import PerWorkerValues

Scope = Callable[[], contextlib.AbstractContextManager[Any]]
# From a concrete function to what calls it on a worker.
Prepare = Callable[[Any], Callable[..., Any]]


def bind(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    scope: Scope,
    prepare: Prepare,
) -> Callable[[], Any]:
    """Prepares a call so that any lane can make it.

    A `tf.function` is traced here, on the caller's thread and under no
    device, so that there is one trace for all workers: a function that is
    traced under a device keeps that device, and one that is called under
    another device is traced again. Which of its traces fits the arguments is
    asked of TensorFlow each time; its own cache answers in about 25 us.

    Args:
        function: A `tf.function`, a concrete function or a Python callable.
        args: Its positional arguments, a list or tuple, or None.
        kwargs: Its keyword arguments, or None.
        scope: Returns the context manager that functions are traced in.
        prepare: Returns what is called in the place of a concrete function.

    Returns:
        The call, without arguments, to be made on a lane's thread: each
        `PerWorkerValues` is replaced by the value of that thread's worker.

    Raises:
        TypeError: If `function` cannot be called.
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
    kwargs = dict(kwargs) if kwargs is not None else {}
    leaves = tf.nest.flatten((args, kwargs))
    places = _per_worker_places(leaves)
    for leaf in leaves:
        if isinstance(leaf, RemoteValue):
            _refuse_remote_value(leaf)
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        concrete = _concrete(function, args, kwargs, bool(places), scope)
        defaults = _missing_defaults(function, concrete, len(args), kwargs)
        if defaults:
            kwargs.update(defaults)
            leaves = tf.nest.flatten((args, kwargs))
            places = _per_worker_places(leaves)
        function = concrete
    if isinstance(function, tf.types.experimental.ConcreteFunction):
        function = prepare(function)
    if not places:
        return lambda: function(*args, **kwargs)
    return _per_worker_call(function, (args, kwargs), leaves, places)


def describe(function: Callable[..., Any], args: Any, kwargs: Any) -> str:
    """What a scheduled call is, for people: names, dtypes and shapes."""
    name = getattr(function, "__name__", None) or type(function).__name__
    leaves = tf.nest.flatten((args or (), kwargs or {}))
    shown = [_describe(leaf) for leaf in leaves]
    return f"{name}({', '.join(shown)})"


def _describe(leaf: Any) -> str:
    if isinstance(leaf, tf.Tensor | tf.Variable):
        return f"{leaf.dtype.name}{leaf.shape.as_list()}"
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return type(leaf).__name__


def _per_worker_places(leaves: list[Any]) -> list[int]:
    return [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, PerWorkerValues)
    ]


def _per_worker_call(
    function: Callable[..., Any],
    structure: tuple[tuple[Any, ...], dict[str, Any]],
    leaves: list[Any],
    places: list[int],
) -> Callable[[], Any]:
    """A call that looks its per-worker arguments up when it is made."""

    def call() -> Any:
        own_leaves = list(leaves)
        for place in places:
            own_leaves[place] = leaves[place].current()
        args, kwargs = tf.nest.pack_sequence_as(structure, own_leaves)
        return function(*args, **kwargs)

    return call


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
