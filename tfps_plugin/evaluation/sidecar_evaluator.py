"""`tfps.SidecarEvaluator`: evaluates checkpoints beside the training."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin._compat import keras_callbacks as keras_compat
from tfps_plugin.evaluation import evaluation_data
from tfps_plugin.evaluation import running_job
from tfps_plugin.evaluation.checkpoint import Checkpoint
from tfps_plugin.evaluation.endings import Endings
from tfps_plugin.evaluation.export_best import BestModel
from tfps_plugin.evaluation.export_best import ExportBest
from tfps_plugin.evaluation.folder import KINDS
from tfps_plugin.evaluation.folder import CheckpointFolder
from tfps_plugin.evaluation.pending import PendingCheckpoints
from tfps_plugin.evaluation.report import Evaluation
from tfps_plugin.evaluation.report import Summaries
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)

_logger = logging.getLogger("tfps_plugin.evaluation")

# Longer than a tick of any disk's clock, shorter than anybody notices.
_SETTLE_SECONDS = 0.5
# How long it sleeps at most.
_WAKE_UP_SECONDS = 1.0
# How often somebody is told that there is still nothing to do.
_NOTICE_SECONDS = 60.0


class SidecarEvaluator:
    """Evaluates each new checkpoint of a training, in a process of its own.

    ```python
    model = build_and_compile_model()  # outside of any strategy
    tfps.SidecarEvaluator(
        model,
        data=validation_dataset,
        checkpoint_dir="checkpoints",
        callbacks=[keras.callbacks.TensorBoard("logs")],
        export_best=tfps.ExportBest("best.keras"),
    ).start()
    ```

    It follows a folder of checkpoints, however they were written:
    `keras.callbacks.ModelCheckpoint` with files that end in `.keras` or
    `.weights.h5`, under new names or always the same; `tf.train.Checkpoint`
    and `tf.train.CheckpointManager`. It always takes the youngest; while
    it evaluates one, others may be passed over.

    It never connects to the cluster, and takes no part in it. A checkpoint
    that is deleted or still being written while it is read is tried again, and
    given up after a while; no checkpoint is evaluated twice or in part.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        *,
        batch_size: int | None = None,
        stop_after_step: int | None = None,
        export_best: ExportBest | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        poll_interval_seconds: float = 1.0,
        load_timeout_seconds: float = 30.0,
        no_checkpoint_timeout_seconds: float | None = None,
        verbose: int = 1,
    ) -> None:
        """Creates the evaluator; reads nothing yet.

        Args:
            model: A compiled `keras.Model` of the same layers as the one that
                is trained, made outside the training's strategy.
            data: What `model.evaluate` takes: a `tf.data.Dataset`, a
                `keras.utils.PyDataset`, arrays, a tuple `(x, y)` or
                `(x, y, sample_weight)`; or a `tfps.DatasetCreator`.
            checkpoint_dir: The folder of the checkpoints. It need not be
                there yet.
            steps: How many batches one evaluation takes; None is all. A
                dataset that repeats for ever needs it.
            max_evaluations: Ends after so many evaluations, and after a
                checkpoint with this number or a larger one at the end of its
                name: with `epoch-{epoch}.keras`, the number of epochs.
            callbacks: Callbacks of Keras, for `on_test_begin` and so on.
                `keras.callbacks.TensorBoard` writes each metric at the step
                of the training.
            batch_size: The batch size, where `data` are arrays.
            stop_after_step: Ends after a checkpoint of this step of the
                optimizer or a later one.
            export_best: Where to keep the best model, and what is best.
            log_dir: Writes each metric for TensorBoard, as the callback does
                and without it.
            poll_interval_seconds: How often the folder is looked at.
            load_timeout_seconds: How long a checkpoint that cannot be loaded
                is tried again.
            no_checkpoint_timeout_seconds: Ends if no new checkpoint appears
                for so long; None waits on.
            verbose: 1 prints a line for each evaluation, 0 nothing.

        Raises:
            InputError: If the model is not compiled, the data can be read
                only once, a number is not positive, or the best model would
                be exported among the checkpoints.
            UnsupportedError: If the model belongs to a parameter-server
                training.
        """
        self.model = model
        self.data = data
        self.checkpoint_dir = os.fspath(checkpoint_dir)
        self.steps = steps
        self.max_evaluations = max_evaluations
        self.callbacks = list(callbacks or [])
        _require_plain_and_compiled(model)
        self._folder = CheckpointFolder(self.checkpoint_dir)
        self._endings = Endings(
            max_evaluations, stop_after_step, no_checkpoint_timeout_seconds
        )
        self._poll_interval_seconds = poll_interval_seconds
        self._pending = PendingCheckpoints(
            settle_seconds=min(_SETTLE_SECONDS, poll_interval_seconds),
            retry_seconds=poll_interval_seconds,
            give_up_seconds=load_timeout_seconds,
        )
        self._arguments = evaluation_data.to_arguments(data)
        self._arguments |= {"steps": steps, "batch_size": batch_size}
        self._best = None
        if export_best is not None:
            _require_outside(export_best, self.checkpoint_dir)
            self._best = BestModel(export_best)
        self._summaries = None if log_dir is None else Summaries(log_dir)
        self._verbose = verbose
        self._stopped = threading.Event()
        self._last_failure: Exception | None = None

    def start(self) -> list[Evaluation]:
        """Evaluates checkpoints until there is nothing left to do.

        Ends as `max_evaluations`, `stop_after_step` or
        `no_checkpoint_timeout_seconds` say, by `stop`, or, in an evaluator of
        a job that `TF_CONFIG` describes, when that job is over and its last
        checkpoint is evaluated. Without any of these it goes on until Ctrl-C.

        Returns:
            All evaluations, in their order.

        Raises:
            CheckpointNotFoundError: If it ends without an evaluation though
                it was given no reason to by `stop`.
            Exception: What the model, its metrics, the data or a callback
                raise.

        Threading: of one thread; on the main thread Ctrl-C ends it.
        """
        job = running_job.find()
        callbacks = keras.callbacks.CallbackList(
            self.callbacks, model=self.model, epochs=1, steps=self.steps
        )
        evaluations: list[Evaluation] = []
        waiting_since = time.monotonic()
        next_notice = waiting_since + _NOTICE_SECONDS
        reason = None
        try:
            while reason is None and not self._stopped.is_set():
                # Asked before looking: what a job wrote last is then seen.
                is_over = job.is_over()
                now = time.monotonic()
                self._pending.look(self._folder.find(), now)
                checkpoint = self._pending.next(now, is_final=is_over)
                if checkpoint is None:
                    reason = self._endings.while_waiting(
                        waited_seconds=now - waiting_since,
                        num_pending=len(self._pending),
                        is_job_over=is_over,
                    )
                    if reason is None:
                        if now >= next_notice:
                            next_notice = now + _NOTICE_SECONDS
                            self._notice(now - waiting_since)
                        self._rest(self._poll_interval_seconds)
                    continue
                step = self._load(checkpoint, is_final=is_over)
                if step is None:
                    continue
                evaluation = self._evaluate(checkpoint, step, callbacks)
                evaluations.append(evaluation)
                reason = self._endings.after_evaluation(
                    num_evaluations=len(evaluations),
                    number=checkpoint.number,
                    step=step,
                )
                waiting_since = time.monotonic()
                next_notice = waiting_since + _NOTICE_SECONDS
        finally:
            if self._summaries is not None:
                self._summaries.close()
        if reason is not None:
            self._tell(f"The evaluator ends: {reason}.")
            if not evaluations:
                raise self._nothing_found(reason)
        return evaluations

    def stop(self) -> None:
        """Has `start` return after the evaluation that it is at, if any.

        Threading: any thread, also before `start`.
        """
        self._stopped.set()

    def _rest(self, seconds: float) -> None:
        """Waits, unless it is stopped; Ctrl-C is noticed within a second.

        A signal that another thread receives interrupts no waiting.
        """
        deadline = time.monotonic() + seconds
        while (left_seconds := deadline - time.monotonic()) > 0:
            if self._stopped.wait(min(left_seconds, _WAKE_UP_SECONDS)):
                return

    def _load(self, checkpoint: Checkpoint, *, is_final: bool) -> int | None:
        """Loads a checkpoint; returns its step, or None if that failed."""
        if not self.model.built:
            # Some models make their weights at their first batch.
            self.model.evaluate(**self._arguments | {"steps": 1}, verbose=0)
        try:
            return self._folder.load(checkpoint, self.model)
        except Exception as error:
            self._last_failure = error
            is_given_up = self._pending.failed(
                checkpoint, time.monotonic(), is_final=is_final
            )
            _logger.log(
                logging.WARNING if is_given_up else logging.INFO,
                "The checkpoint %s cannot be loaded; %s. %s: %s",
                checkpoint.path,
                "it is left out" if is_given_up else "it is tried again",
                type(error).__name__,
                error,
            )
            return None

    def _evaluate(
        self,
        checkpoint: Checkpoint,
        step: int,
        callbacks: keras.callbacks.CallbackList,
    ) -> Evaluation:
        num_skipped = self._pending.evaluated(checkpoint)
        if num_skipped:
            _logger.info("%d older checkpoints are passed over.", num_skipped)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            # What callbacks, and TensorBoard's above all, take the step from.
            optimizer.iterations.assign(step)
        metrics = self.model.evaluate(
            **self._arguments, verbose=0, callbacks=callbacks, return_dict=True
        )
        evaluation = Evaluation(checkpoint.path, step, metrics)
        if self._summaries is not None:
            self._summaries.write(evaluation)
        for callback in self.callbacks:
            if isinstance(callback, keras.callbacks.TensorBoard):
                keras_compat.flush_summaries(callback)
        is_best = self._best is not None and self._best.consider(
            evaluation, self.model
        )
        self._tell(f"{evaluation}{' - the best so far' if is_best else ''}")
        return evaluation

    def _tell(self, line: str) -> None:
        if self._verbose:
            print(line, flush=True)
        else:
            _logger.info("%s", line)

    def _notice(self, waited_seconds: float) -> None:
        # Loud enough to be seen where nobody has set logging up.
        _logger.warning(
            "No new checkpoint in %s for %.0f s.",
            self.checkpoint_dir,
            waited_seconds,
        )

    def _nothing_found(self, reason: str) -> errors.CheckpointNotFoundError:
        patterns = ", ".join(kind.pattern for kind in KINDS)
        error = errors.CheckpointNotFoundError(
            f"No checkpoint was evaluated, and the evaluator ends: {reason}. "
            f"Expected files like {patterns} in the folder. Received: "
            f"checkpoint_dir={self.checkpoint_dir!r}. "
            + (
                "See that the training saves its checkpoints there."
                if self._last_failure is None
                else "The last one could not be loaded; see the error above. "
                "Does the model have the layers of the one that is trained?"
            )
        )
        error.__cause__ = self._last_failure
        return error


def _require_plain_and_compiled(model: Any) -> None:
    strategy = getattr(model, "distribute_strategy", None)
    if isinstance(strategy, ParameterServerStrategy):
        raise errors.UnsupportedError(
            "An evaluator takes no part in the cluster, but its model was "
            "made under a ParameterServerStrategy. Received: "
            f"model={model.name!r}. Make it outside strategy.scope()."
        )
    if not model.compiled:
        raise errors.InputError(
            "The evaluator's model needs a loss or metrics. Received: "
            f"model={model.name!r}, which is not compiled. Call "
            "model.compile(loss=..., metrics=[...])."
        )


def _require_outside(export_best: ExportBest, checkpoint_dir: str) -> None:
    folder = os.path.dirname(os.path.abspath(export_best.path))
    if os.path.realpath(folder) == os.path.realpath(checkpoint_dir):
        raise errors.InputError(
            "The best model would be taken for a checkpoint. Received: "
            f"export_best.path={os.fspath(export_best.path)!r}, "
            f"checkpoint_dir={checkpoint_dir!r}. Export it to another folder."
        )
