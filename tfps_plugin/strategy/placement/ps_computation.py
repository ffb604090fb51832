"""Computations on the parameter server that holds their variables."""

import contextlib
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_gradients
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.runtime import tensorflow_devices
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.step_trace import StepTrace


def on_ps(what: Any) -> contextlib.AbstractContextManager[None]:
    """Computes on the parameter server that holds the weights of a layer.

    ```python
    def call(self, x):
        with tfps.on_ps(self.logits):
            return self.logits(x)
    ```

    Activations then travel to the parameter server, and not its weights to the
    worker: that is less if the weights are large, as those of an output layer
    with many classes. Gradients are computed there, too. So are the loss and
    the metrics of a model whose outputs are, under `fit` and `evaluate`.

    All weights have to be whole, on one parameter server. Those of a layer
    that is built inside of the context are: on the one that `tf.device` names,
    or else the one with the fewest bytes. Where there is no parameter server,
    as in a model that was loaded in another process, nothing changes.

    Args:
        what: A Keras layer, a `tf.Module`, a variable, or a list of these.

    Returns:
        A context manager.

    Raises:
        PlacementError: If its variables are on several parameter servers, or
            one is cut.
        UnsupportedError: With `tfps.Async(local_steps=n)`, whose workers
            compute with weights of their own.
    """
    return _on_ps(what)


@contextlib.contextmanager
def _on_ps(what: Any) -> Iterator[None]:
    device, variables = _home_of(what)
    if device is None:
        yield
        return
    step = StepTrace.current()
    if step.is_in_round:
        raise errors.UnsupportedError(
            "tfps.on_ps cannot compute on a parameter server with "
            "tfps.Async(local_steps=n), whose workers change weights of their "
            f"own between rounds. Received: {_described(what)}. Use "
            "local_steps=1, or leave on_ps out."
        )
    step.computes_on_ps(device, variables)
    with (
        tf.device(device),
        tensorflow_devices.keeping_whole(),
        tensorflow_gradients.backward_on_same_device(),
    ):
        yield


@contextlib.contextmanager
def beside(values: Any) -> Iterator[None]:
    """Computes where `on_ps` has computed some values.

    Args:
        values: Any structure of tensors. If they are not all from one
            parameter server, nothing changes.

    Yields:
        Nothing.
    """
    devices = {
        each.op.device
        for each in tf.nest.flatten(values, expand_composites=True)
        if isinstance(getattr(each, "graph", None), tf.Graph)
    }
    if len(devices) != 1 or not StepTrace.current().has_computed_on(*devices):
        yield
        return
    with (
        tf.device(devices.pop()),
        tensorflow_gradients.backward_on_same_device(),
    ):
        yield


def _home_of(what: Any) -> tuple[str | None, list[Any]]:
    """Returns the device of the ps that holds something, and its variables."""
    if tensorflow_saving.in_saved_graph():
        return None, []
    variables = list(_variables_of(what))
    devices: dict[str, str] = {}
    for variable in variables:
        if isinstance(variable, ShardedVariable):
            raise errors.PlacementError(
                f"tfps.on_ps cannot compute with {variable.path!r}, because it "
                f"is cut into {len(variable.variables)} shards. Expected "
                "weights that are whole, on one parameter server. Received: "
                f"{_described(what)}. Build the layer inside of tfps.on_ps or "
                "under tf.device('/job:ps/task:0'): its weights then stay "
                "whole."
            )
        devices[variable.path] = variable.device
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{path} on {at}" for path, at in devices.items())
        raise errors.PlacementError(
            "tfps.on_ps cannot compute with weights on several parameter "
            "servers, because these do not connect to each other. Expected "
            f"all of them on one. Received: {_described(what)} with {where}. "
            "Build the layer inside of tfps.on_ps or under "
            "tf.device('/job:ps/task:0'): its weights then are on one."
        )
    if devices:
        return next(iter(devices.values())), variables
    if isinstance(what, keras.layers.Layer) and not what.built:
        return _device_to_build_on(), []
    return None, []


def _device_to_build_on() -> str | None:
    """Returns the device of the ps for new weights; None: there is no ps."""
    strategy = tf.distribute.get_strategy()
    choose = getattr(strategy.extended, "non_slot_devices", None)
    servers = getattr(strategy, "ps_devices", ())
    if not servers or choose is None:
        return None
    named = tensorflow_devices.named_device()
    if (
        named is not None
        and named.job == PARAMETER_SERVER
        and named.task is not None
    ):
        for device in servers:
            if tf.DeviceSpec.from_string(device).task == named.task:
                return str(device)
    return str(choose([]))


def _variables_of(what: Any) -> Iterable[Any]:
    """Yields the variables on parameter servers that something has."""
    if isinstance(what, list | tuple):
        for each in what:
            yield from _variables_of(each)
    elif isinstance(what, keras.layers.Layer):
        yield from _variables_of(list(what.weights))
    elif isinstance(what, keras.Variable):
        yield from _variables_of(what.value)
    elif isinstance(what, RemoteVariable | ShardedVariable):
        yield what
    elif isinstance(what, tf.Module) and not isinstance(what, tf.Variable):
        yield from _variables_of(list(what.variables))


def _described(what: Any) -> str:
    name = getattr(what, "name", None)
    return f"{type(what).__name__} {name!r}" if name else repr(what)
