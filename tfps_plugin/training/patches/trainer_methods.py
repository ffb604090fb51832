"""Wrappers of `compile`, `fit`, `evaluate` and `predict`."""

import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import keras_optimizers
from tfps_plugin.cluster.chief import connection
from tfps_plugin.coordinator import error_notes
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.dataset_creator import DatasetCreator
from tfps_plugin.strategy.consistency import Consistency
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.strategy.consistency import local_steps_of
from tfps_plugin.strategy.consistency import require_whole_rounds
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)
from tfps_plugin.training import step_build
from tfps_plugin.training.optimizers import table_semantics
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.training.patches import batch_callbacks
from tfps_plugin.training.patches import call_arguments
from tfps_plugin.training.patches import fit_progress
from tfps_plugin.training.patches import running_call
from tfps_plugin.training.patches import scope_check
from tfps_plugin.training.patches.running_call import RunningCall
from tfps_plugin.training.steps.epoch.epoch_iterator import ChiefEpochIterator
from tfps_plugin.training.steps.epoch.epoch_iterator import ClusterEpochIterator
from tfps_plugin.training.steps.epoch.epoch_iterator import PredictEpochIterator
from tfps_plugin.training.steps.epoch.predict_run import PredictDispatcher
from tfps_plugin.training.steps.epoch.step_dispatcher import StepDispatcher
from tfps_plugin.training.steps.traced.eager_mode import runs_eagerly
from tfps_plugin.training.synchronous.spans import Spans
from tfps_plugin.variables.chief import steps_in_flight

_logger = logging.getLogger("tfps_plugin.training")

# Time that Ctrl-C waits for running calls of workers.
_INTERRUPT_SECONDS = 30.0
# Arguments that a DatasetCreator's function decides, so fit() cannot.
_DATASET_ARGUMENTS = (
    "y",
    "batch_size",
    "sample_weight",
    "validation_split",
)


def is_ours(model: Any) -> bool:
    """Returns whether a model was made under one of our strategies."""
    return isinstance(keras_compat.strategy_of(model), ParameterServerStrategy)


def epoch_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a factory of epoch iterators: ours, or Keras's own."""

    # Without functools.wraps: the original is a class.
    def make(distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> Any:
        call = running_call.current()
        if call is None or not isinstance(
            distribute_strategy, ParameterServerStrategy
        ):
            return original(distribute_strategy, *args, **kwargs)
        return _iterator_of(call, distribute_strategy, *args, **kwargs)

    return make


def _iterator_of(
    call: RunningCall, distribute_strategy: Any, *args: Any, **kwargs: Any
) -> Any:
    """Returns our epoch iterator for an input.

    With `run_eagerly`, the steps run on the chief, on Keras's own iterator.
    """
    if call.method == "fit":
        _require_rounds(call.model, distribute_strategy.consistency)
    on_chief = runs_eagerly(call.model) or call.method == "predict"
    is_creator = isinstance(kwargs.get("x"), DatasetCreator)
    if on_chief and is_creator:
        # The chief runs the only pipeline.
        kwargs["x"] = kwargs["x"].get_tf_dataset()
        kwargs["shuffle"] = False
    if runs_eagerly(call.model):
        return ChiefEpochIterator(distribute_strategy, *args, **kwargs)
    iterator: PredictEpochIterator | ClusterEpochIterator
    if call.method == "predict":
        iterator = PredictEpochIterator(
            distribute_strategy,
            *args,
            functions=lambda: call.model.predict_function.functions,
            looks_ahead=is_creator,
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


def _require_rounds(model: Any, consistency: Consistency) -> None:
    """Refuses a `fit` whose steps cannot be made in rounds of local steps.

    Raises:
        UnsupportedError: If the chief runs them one by one.
        ValueError: If calls of workers would end within a round.
    """
    if local_steps_of(consistency) == 1:
        return
    if runs_eagerly(model):
        raise errors.UnsupportedError(
            "With run_eagerly=True the chief makes one step after another, and "
            "no worker makes local steps. Expected a compiled step. Received: "
            f"run_eagerly=True, with consistency=tfps.{consistency}. Leave it "
            "out (also tf.config.run_functions_eagerly), or train with "
            "tfps.Async()."
        )
    steps = int(model.steps_per_execution)
    require_whole_rounds(
        consistency,
        "steps_per_execution of compile()",
        steps if steps > 1 else None,
    )


def compile_in_scope(
    original: Callable[..., None],
) -> Callable[..., None]:
    """Returns a `compile` that works under the strategy's scope."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_ours(self):
            return original(self, *args, **kwargs)
        call_arguments.checked(
            "compile", signature.bind_partial(self, *args, **kwargs).arguments
        )
        strategy = keras_compat.strategy_of(self)
        with strategy.scope():
            original(self, *args, **kwargs)
            optimizer = _made_in_scope(self.optimizer, strategy)
            if optimizer is not self.optimizer:
                self.optimizer = optimizer
        # A model that is not built yet is checked together with its optimizer.
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


def with_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `fit`, `evaluate` or `predict` that is the running call.

    Args:
        original: Keras's own method.
    """
    method = original.__name__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call_on_cluster(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "_use_cached_eval_dataset" in kwargs:
            # Validation as part of fit().
            return original(self, *args, **kwargs)
        bound = signature.bind_partial(self, *args, **kwargs)
        arguments = bound.arguments
        if not is_ours(self):
            inputs = [arguments.get(name) for name in ("x", "validation_data")]
            scope_check.local_models.check(self, method, inputs)
            return original(self, *args, **kwargs)
        arguments.update(call_arguments.checked(method, arguments))
        _check_arguments(method, arguments)
        rehearsal = keras_compat.strategy_of(self).rehearsal
        if rehearsal is not None:
            arguments.update(rehearsal.begin(self, method, dict(arguments)))
        # A callback may call evaluate() or predict() itself.
        steps_in_flight.finish()
        call = RunningCall(
            method,
            self,
            show_all_batches=batch_callbacks.looks_at_batches(
                arguments.get("callbacks")
            ),
            workers_validate=isinstance(
                arguments.get("validation_data"), DatasetCreator
            ),
        )
        progress = keras_compat.strategy_of(self).progress
        if method == "fit":
            arguments["callbacks"] = fit_progress.with_progress(
                arguments.get("callbacks"), progress
            )
        try:
            with (
                running_call.running(call),
                steps_in_flight.finishing(
                    call.sync,
                    are_synchronous=isinstance(
                        keras_compat.strategy_of(self).consistency, Sync
                    ),
                ),
                _tidy_after_error(self, call),
                fit_progress.telling(
                    progress, method, self, arguments.get("steps")
                ),
            ):
                return original(*bound.args, **bound.kwargs)
        except Exception as error:
            # As Keras hides its own frames.
            if keras.config.is_traceback_filtering_enabled():
                error_notes.fold(error)
            raise

    return call_on_cluster


def build_from_spec(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `_maybe_symbolic_build` that does not read our input.

    Keras would begin an epoch to inspect a batch, and begin another to train;
    input from Python code may not allow that. Models that a call cannot build
    are built by their step.
    """

    @functools.wraps(original)
    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if not is_ours(self):
            original(self, iterator=iterator, data_batch=data_batch)
            return
        if runs_eagerly(self):
            # Its first step builds it, as in a single process: code that is
            # called with symbolic tensors could not inspect values.
            return
        _make_optimizers_in_scope(self)
        call = running_call.current()
        if call is None or not isinstance(iterator, ClusterEpochIterator):
            # A single batch, whose step runs in this process.
            if not step_build.has_own_way(self):
                original(self, iterator=iterator, data_batch=data_batch)
            return
        step = call.step_of(iterator)
        if not step_build.is_by_step(self, step):
            original(self, data_batch=iterator.batch_spec)
            return
        made = {
            "train_step": self.train_function,
            "test_step": self.test_function,
        }
        if not _is_up_to_date(made[step], self) and (
            not step_build.is_complete(self)
        ):
            step_build.build(
                self,
                step,
                iterator.batch_spec,
                ClusterCoordinator(keras_compat.strategy_of(self)),
            )

    return build


def make_train_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `make_train_function` that uses the workers."""
    return _make_function(original, "train_function", "train_step")


def make_test_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `make_test_function` that uses the workers."""
    return _make_function(original, "test_function", "test_step")


def _make_function(
    original: Callable[..., Any], attribute: str, step: str
) -> Callable[..., Any]:

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        if not is_ours(self):
            return original(self, force)
        existing = getattr(self, attribute)
        if _is_up_to_date(existing, self) and not force:
            return existing
        scope_check.require_created_in_scope(self)
        _build_optimizer(self)
        original(self, force=True)
        if step == "train_step":
            table_semantics.tell(
                self.optimizer,
                self.trainable_variables,
                self.distribute_strategy.sparse_update,
            )
        dispatcher = StepDispatcher(
            self,
            getattr(self, step),
            getattr(self, attribute),
            counts_exactly=step == "test_step",
            on_order_needed=functools.partial(_require_no_order_later, self),
        )
        setattr(self, attribute, dispatcher)
        return dispatcher

    return make


def make_predict_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `make_predict_function` that uses the workers."""

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        if not is_ours(self):
            return original(self, force)
        if _is_up_to_date(self.predict_function, self) and not force:
            return self.predict_function
        original(self, force=True)
        self.predict_function = PredictDispatcher(self, self.predict_function)
        return self.predict_function

    return make


def _build_optimizer(model: Any) -> None:
    """Builds the optimizer before the step is traced, if it has to be.

    Keras builds it inside the step, after rows have been looked up.
    """
    optimizer = model.optimizer
    if (
        model.distribute_strategy.sparse_update == "caught_up"
        and optimizer is not None
        and not optimizer.built
    ):
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def _require_no_order_later(model: Any, batch_spec: Any) -> None:
    """Refuses, before `fit` begins, steps that its validation would refuse.

    Args:
        model: The model; its steps must follow one another.
        batch_spec: The type of a batch.
    """
    call = running_call.current()
    if call is not None and call.method == "fit" and call.workers_validate:
        call.workers_validate = False  # looked at
        model.make_test_function()
        model.test_function.require_any_order(batch_spec)


def _is_up_to_date(function: Any, model: Any) -> bool:
    """Returns whether a function is ours and matches `run_eagerly`."""
    return isinstance(
        function, StepDispatcher | PredictDispatcher
    ) and function.runs_eagerly == runs_eagerly(model)


@contextlib.contextmanager
def _tidy_after_error(model: Any, call: RunningCall) -> Iterator[None]:
    """Leaves the cluster idle and usable, however the call ends."""
    try:
        yield
        call.close()
    except BaseException as error:
        # A second Ctrl-C ends the wait, and is not reported again.
        follow_ups = (
            (Exception, KeyboardInterrupt)
            if isinstance(error, KeyboardInterrupt)
            else (Exception,)
        )
        with contextlib.suppress(*follow_ups):
            # Before functions are cancelled: steps that workers make together
            # end with the parts of all of them.
            connection.present().part(Spans).finish(
                None if isinstance(error, Exception) else _INTERRUPT_SECONDS
            )
        with contextlib.suppress(*follow_ups):
            call.close()
        coordinator = keras_compat.strategy_of(model)._cluster_coordinator
        if coordinator is not None:
            coordinator.cancel_queued()
            # Waits, so that running steps do not change the model later.
            # Further failures follow from the error that is raised.
            with contextlib.suppress(*follow_ups):
                if isinstance(error, Exception):
                    coordinator.join()
                else:
                    coordinator.wait_until_quiet(_INTERRUPT_SECONDS)
        raise


def _check_arguments(method: str, arguments: dict[str, Any]) -> None:
    """Refuses arguments that Keras would ignore with a DatasetCreator."""
    if isinstance(arguments.get("x"), DatasetCreator):
        _refuse(method, _given(arguments, _DATASET_ARGUMENTS))
    validation = arguments.get("validation_data")
    if isinstance(validation, tuple | list) and any(
        isinstance(part, DatasetCreator) for part in validation
    ):
        _refuse(method, ["validation_data=(DatasetCreator, ...)"])
    if isinstance(validation, DatasetCreator):
        _refuse(method, _given(arguments, ("validation_batch_size",)))


def _given(arguments: dict[str, Any], names: Iterable[str]) -> list[str]:
    return [
        name
        for name in names
        if arguments.get(name) is not None
        and not (name == "validation_split" and not arguments[name])
    ]


def _refuse(method: str, given: list[str]) -> None:
    if given:
        raise errors.InputError(
            f"{method}() with a tfps.DatasetCreator takes targets, weights "
            "and batches from the dataset alone. Received: "
            f"{', '.join(given)}. Make the dataset yield (x, y) or "
            "(x, y, sample_weight), batched; validation_data may be another "
            "DatasetCreator."
        )


def _make_optimizers_in_scope(model: Any) -> None:
    """Recreates optimizers that the model's own `compile` got from outside.

    Our `compile` handles the optimizer given to `keras.Model.compile`.
    """
    strategy = keras_compat.strategy_of(model)
    for name, optimizer in list(vars(model).items()):
        if isinstance(optimizer, keras.optimizers.Optimizer):
            with strategy.scope():
                made = _made_in_scope(optimizer, strategy)
            if made is not optimizer:
                setattr(model, name, made)


def _made_in_scope(optimizer: Any, strategy: Any) -> Any:
    """Returns the optimizer, recreated if it was made outside the scope."""
    made_with = keras_optimizers.strategy_of(optimizer, strategy)
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
