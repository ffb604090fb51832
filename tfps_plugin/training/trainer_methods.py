"""What compile, fit, evaluate and predict do under our strategy."""

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)
from tfps_plugin.training import running_call
from tfps_plugin.training import scope_check
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.training.running_call import RunningCall
from tfps_plugin.training.steps.epoch_iterator import ClusterEpochIterator
from tfps_plugin.training.steps.epoch_iterator import PredictEpochIterator
from tfps_plugin.training.steps.predict_run import PredictDispatcher
from tfps_plugin.training.steps.step_dispatcher import StepDispatcher
from tfps_plugin.variables import steps_in_flight

_logger = logging.getLogger(__name__)

_BATCH_HOOKS = ("on_batch_end", "on_train_batch_end")
# What a DatasetCreator's function decides, so fit() cannot.
_DATASET_ARGUMENTS = (
    "y",
    "batch_size",
    "sample_weight",
    "validation_split",
)


def is_ours(model: Any) -> bool:
    """Whether a model was made under one of our strategies."""
    return isinstance(
        getattr(model, "_distribute_strategy", None), ParameterServerStrategy
    )


def make_epoch_iterator(
    distribute_strategy: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """The epoch iterator of one input: ours, or Keras's.

    With `run_eagerly`, the steps run on the chief, on Keras's own iterator.
    """
    call = running_call.current()
    if (
        call is None
        or not isinstance(distribute_strategy, ParameterServerStrategy)
        or call.model.run_eagerly
    ):
        return keras_compat.TFEpochIterator(
            distribute_strategy, *args, **kwargs
        )
    iterator: PredictEpochIterator | ClusterEpochIterator
    if call.method == "predict":
        iterator = PredictEpochIterator(
            distribute_strategy,
            *args,
            functions=lambda: call.model.predict_function.functions,
            **kwargs,
        )
    else:
        iterator = ClusterEpochIterator(
            distribute_strategy,
            *args,
            show_all_batches=call.show_all_batches,
            **kwargs,
        )
    call.add_input(iterator)
    return iterator


def compile_in_scope(
    original: Callable[..., None],
) -> Callable[..., None]:
    """`compile` that makes what it makes under the strategy's scope."""

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_ours(self):
            return original(self, *args, **kwargs)
        strategy = self._distribute_strategy
        with strategy.scope():
            original(self, *args, **kwargs)
            optimizer = _made_in_scope(self.optimizer, strategy)
            if optimizer is not self.optimizer:
                self.optimizer = optimizer
        # A model that is not built yet is checked when its optimizer is.
        whole_matrix.require_compilable(
            self.optimizer, self.trainable_variables
        )
        if self.jit_compile:
            warnings.warn(
                "jit_compile=True is ignored: XLA cannot compile a step that "
                "reads variables of parameter servers.",
                stacklevel=2,
            )
        self.jit_compile = False
        return None

    return compile


def with_call(original: Callable[..., Any], method: str) -> Callable[..., Any]:
    """`fit`, `evaluate` or `predict` that knows of itself while it runs."""

    @functools.wraps(original)
    def call_on_cluster(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(self) or "_use_cached_eval_dataset" in kwargs:
            # Not ours, or validation as a part of fit().
            return original(self, *args, **kwargs)
        _check_arguments(method, args, kwargs)
        # A callback may call evaluate() or predict() of its own.
        steps_in_flight.finish()
        call = RunningCall(
            method,
            self,
            show_all_batches=_looks_at_batches(kwargs.get("callbacks")),
        )
        with (
            running_call.running(call),
            steps_in_flight.finishing(call.sync),
            _tidy_after_error(self, call),
        ):
            return original(self, *args, **kwargs)

    return call_on_cluster


def make_function(
    original: Callable[..., Any], attribute: str, step: str
) -> Callable[..., Any]:
    """`make_train_function` or `make_test_function` that uses the workers."""

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        if not is_ours(self):
            return original(self, force)
        if getattr(self, attribute) is not None and not force:
            return getattr(self, attribute)
        scope_check.require_created_in_scope(self)
        original(self, force)
        if self.run_eagerly:
            return getattr(self, attribute)
        dispatcher = StepDispatcher(
            self,
            getattr(self, step),
            getattr(self, attribute),
            counts_exactly=step == "test_step",
        )
        setattr(self, attribute, dispatcher)
        return dispatcher

    return make


def make_predict_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """`make_predict_function` that uses the workers."""

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        if not is_ours(self):
            return original(self, force)
        if self.predict_function is not None and not force:
            return self.predict_function
        original(self, force)
        if not self.run_eagerly:
            self.predict_function = PredictDispatcher(
                self, self.predict_function
            )
        return self.predict_function

    return make


@contextlib.contextmanager
def _tidy_after_error(model: Any, call: RunningCall) -> Iterator[None]:
    """Leaves the cluster quiet and usable, however the call ends."""
    try:
        yield
        call.close()
    except BaseException as error:
        with contextlib.suppress(Exception):
            call.close()
        coordinator = model._distribute_strategy._cluster_coordinator
        if coordinator is not None:
            coordinator.cancel_queued()
            if isinstance(error, Exception):
                # What else fails now follows from the error that is raised.
                with contextlib.suppress(Exception):
                    coordinator.join()
        raise


def _check_arguments(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    x = kwargs["x"] if "x" in kwargs else (args[0] if args else None)
    if isinstance(x, DatasetCreator):
        given = [
            name for name in _DATASET_ARGUMENTS if kwargs.get(name) is not None
        ]
        if given or len(args) > 1:
            raise errors.InputError(
                f"{method}() with a tfps.DatasetCreator takes targets, "
                "weights and batches from the dataset alone. Received: "
                f"{', '.join(given) or 'a second positional argument'}. "
                "Make the dataset yield (x, y) or (x, y, sample_weight), "
                "batched."
            )


def _looks_at_batches(callbacks: Any) -> bool:
    """Whether any callback looks at the logs of batches."""
    if callbacks is None:
        return False
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    if not isinstance(callbacks, list | tuple):
        callbacks = [callbacks]
    return any(
        getattr(type(callback), hook, None)
        is not getattr(keras.callbacks.Callback, hook)
        for callback in callbacks
        for hook in _BATCH_HOOKS
        if isinstance(callback, keras.callbacks.Callback)
        and not _only_counts_batches(callback)
    )


def _only_counts_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether one of Keras's own is called for every batch, but sees none."""
    kind = type(callback)
    if kind in (
        keras.callbacks.BackupAndRestore,
        keras.callbacks.ProgbarLogger,
        keras.callbacks.SwapEMAWeights,
    ):
        return True
    if kind is keras.callbacks.ModelCheckpoint:
        return callback.save_freq == "epoch"
    return kind is keras.callbacks.TensorBoard and (
        callback.update_freq == "epoch"
    )


def _made_in_scope(optimizer: Any, strategy: Any) -> Any:
    """The optimizer, made again if it was made outside the scope."""
    made_with = getattr(optimizer, "_distribution_strategy", strategy)
    if optimizer is None or made_with is strategy:
        return optimizer
    if optimizer.built:
        raise errors.VariableCreationError(
            "The optimizer was built outside strategy.scope(): its state is "
            f"on the chief. Received: optimizer={optimizer.name!r}. Create "
            "it inside `with strategy.scope():`."
        )
    _logger.info(
        "The optimizer %s was created outside strategy.scope(); it is made "
        "again inside, from its configuration.",
        optimizer.name,
    )
    return type(optimizer).from_config(optimizer.get_config())
