"""Checks that a model was created under the strategy's scope."""

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.cluster.chief.session import Session
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.training import step_build
from tfps_plugin.training.patches import preprocessing

_SHOWN = 5


def require_created_in_scope(model: keras.Model) -> None:
    """Checks every variable that a training step uses.

    Args:
        model: A built and compiled model.

    Raises:
        VariableCreationError: If layers, metrics or optimizers hold
            variables that live on the chief, where workers would read and
            write them one by one.
    """
    extended = model.distribute_strategy.extended
    variables = [*model.variables, *model.metrics_variables]
    for optimizer in step_build.optimizers_of(model):
        variables += optimizer.variables
    unused = preprocessing.variables_that_no_step_reads(model)
    foreign = [
        v.path
        for v in variables
        if not _created_in_scope(extended, v) and id(v) not in unused
    ]
    if foreign:
        raise errors.VariableCreationError(
            f"Some variables of the model {model.name!r} were created outside "
            "strategy.scope(), so they are on the chief instead of the "
            f"parameter servers. Received: {_shown(foreign)}. Create the "
            "layers, metrics and the optimizer inside `with "
            "strategy.scope():`."
        )


class LocalModels:
    """Models of this process only, used while a cluster waits.

    `fit` of such a model works as without a cluster: correctly, and on one
    machine. Its user most likely meant to use the cluster.

    Threading: any thread; two threads that use a model for the first time at
    once may both warn.
    """

    def __init__(
        self, session: Callable[[], Session | None] = Session.current
    ) -> None:
        """Starts without models.

        Args:
            session: Returns the connection to the cluster; None if there is
                none. Every model is then one of this process.
        """
        self._session = session
        self._warned: weakref.WeakSet[keras.Model] = weakref.WeakSet()

    def check(self, model: keras.Model, method: str, inputs: list[Any]) -> None:
        """Refuses input for workers; warns once per model about other input.

        Ignores models of TensorFlow's other strategies. Does nothing without
        a cluster.

        Args:
            model: A model that was not created under one of our strategies.
            method: `fit`, `evaluate` or `predict`, which is about to begin.
            inputs: Its input data.

        Raises:
            InputError: If it was given a `tfps.DatasetCreator`. `predict` is
                not refused: it always reads one on the chief.
        """
        session = self._session()
        if session is None:
            return
        if method != "predict" and any(
            isinstance(each, DatasetCreator) for each in inputs
        ):
            raise errors.InputError(
                f"{method}() was given a tfps.DatasetCreator, which workers "
                "read, but its model is not on the cluster: it was made "
                "outside strategy.scope(). Received: "
                f"model={model.name!r}, {_variables_of(model)}. "
                + _way_onto_the_cluster(method)
            )
        if keras_compat.strategy_of(model) is not None or model in self._warned:
            return
        self._warned.add(model)
        warnings.warn(
            f"The model {model.name!r} is not on the cluster: it was made "
            f"outside strategy.scope(), so {method}() runs in this process "
            f"alone, and {len(session.workers)} workers wait. "
            f"Received: {_variables_of(model)}. "
            + _way_onto_the_cluster(method),
            stacklevel=3,
        )


# Shared by `fit`, `evaluate` and `predict`: they warn once about each model.
local_models = LocalModels()


def _variables_of(model: keras.Model) -> str:
    """Describes the variables of a model."""
    paths = [variable.path for variable in model.variables]
    if not paths:
        return "no variables yet"
    return f"variables of this process: {_shown(paths)}"


def _shown(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _way_onto_the_cluster(method: str) -> str:
    return (
        "Make, or load, and compile the model under the scope of the "
        "strategy:\n\n"
        "    with strategy.scope():\n"
        "        model = make_model()  # or keras.saving.load_model(path)\n"
        "        model.compile(...)\n"
        f"    model.{method}(...)"
    )


def _created_in_scope(extended: Any, variable: keras.Variable) -> bool:
    value = keras_compat.value_of(variable)
    return value is not None and extended.variable_created_in_scope(value)
