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
from tfps_plugin.evaluation import arguments
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

_logger = logging.getLogger("tfps_plugin.evaluation")

# Longer than the resolution of any file system's clock.
_SETTLE_SECONDS = 0.5
# Longest uninterrupted sleep.
_WAKE_UP_SECONDS = 1.0
# Interval of log lines while no checkpoint appears.
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

    It follows a folder of checkpoints of any kind: `.keras` and `.weights.h5`
    files of `keras.callbacks.ModelCheckpoint`, under new names or always the
    same; and those of `tf.train.Checkpoint`, `tf.train.CheckpointManager` and
    `tfps.CheckpointManager`. It always takes the newest, and skips those that
    became outdated during an evaluation.

    It takes no part in the cluster and never connects to it. A checkpoint
    that is deleted or rewritten while it is read is tried again, and given up
    after a while. No checkpoint is evaluated twice or in part.

    Threading: `stop` is safe from any thread; everything else is for one
    thread.

    Attributes:
        model: The model that is evaluated.
        data: The data, as passed.
        checkpoint_dir: The folder of checkpoints, as a string.
        steps: Number of batches in one evaluation; None for all.
        max_evaluations: Largest number of evaluations; None for no limit.
        callbacks: The callbacks, as a list.
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
            model: A compiled `keras.Model` with the layers of the trained
                model, created outside the training's strategy.
            data: Data for `model.evaluate`: a `tf.data.Dataset`, a
                `keras.utils.PyDataset`, arrays, a tuple `(x, y)` or
                `(x, y, sample_weight)`; or a `tfps.DatasetCreator`.
            checkpoint_dir: The folder of checkpoints, local or remote. It
                need not exist yet.
            steps: Number of batches in one evaluation; None for all. Required
                for a dataset that repeats without end.
            max_evaluations: Number of evaluations after which it ends. It
                also ends after a checkpoint whose name ends with this number
                or a larger one: with `epoch-{epoch}.keras`, the number of
                epochs.
            callbacks: Keras callbacks, for `on_test_begin` and the like.
                `keras.callbacks.TensorBoard` writes each metric at the
                training's step.
            batch_size: Batch size, if `data` is arrays.
            stop_after_step: Optimizer step; the evaluator ends after a
                checkpoint of this step or a later one.
            export_best: Options to keep the best model in a file.
            log_dir: Folder for TensorBoard logs of each metric, as the
                callback writes them; it needs no TensorBoard.
            poll_interval_seconds: Interval at which the folder is listed.
            load_timeout_seconds: Time for which a checkpoint that cannot be
                loaded is tried again.
            no_checkpoint_timeout_seconds: Time without a new checkpoint after
                which it ends; None waits without end.
            verbose: 1 prints a line for each evaluation, 0 prints nothing.

        Raises:
            InputError: If the model is not compiled, the data can be read
                only once, a limit is not positive, or the best model would be
                exported into the folder of checkpoints.
            UnsupportedError: If the model was created under a
                `ParameterServerStrategy`.
        """
        self.model = model
        self.data = data
        self.checkpoint_dir = os.fspath(checkpoint_dir)
        self.steps = steps
        self.max_evaluations = max_evaluations
        self.callbacks = list(callbacks or [])
        arguments.require_plain_and_compiled(model)
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
        self._arguments = arguments.of_data(data)
        self._arguments |= {"steps": steps, "batch_size": batch_size}
        self._best = None
        if export_best is not None:
            arguments.require_outside(export_best, self.checkpoint_dir)
            self._best = BestModel(export_best)
        self._summaries = None if log_dir is None else Summaries(log_dir)
        self._verbose = verbose
        self._stopped = threading.Event()
        self._last_failure: Exception | None = None

    def start(self) -> list[Evaluation]:
        """Evaluates checkpoints until a limit is reached or the job is over.

        Ends at `max_evaluations`, `stop_after_step` or
        `no_checkpoint_timeout_seconds`, or after `stop`. The evaluator of a
        job that `TF_CONFIG` describes also ends when that job is over and its
        last checkpoint is evaluated. Otherwise it runs until Ctrl-C.

        Returns:
            All evaluations, in order. Each has `checkpoint` (a path), `step`
            (the optimizer's), and `metrics` (values by name).

        Raises:
            CheckpointNotFoundError: If it ends without any evaluation, except
                after `stop`.
            ClusterConfigurationError: If `TF_CONFIG` is invalid.
            Exception: What the model, its metrics, the data or a callback
                raise.

        Threading: for one thread; on the main thread Ctrl-C interrupts it.
        """
        is_job_over = running_job.find()
        callbacks = keras.callbacks.CallbackList(
            self.callbacks, model=self.model, epochs=1, steps=self.steps
        )
        evaluations: list[Evaluation] = []
        waiting_since = time.monotonic()
        next_notice = waiting_since + _NOTICE_SECONDS
        reason = None
        try:
            while reason is None and not self._stopped.is_set():
                # Read before listing: the last checkpoint is then not missed.
                is_over = is_job_over()
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
        """Makes `start` return after its current evaluation, if any.

        Threading: safe from any thread, also before `start`.
        """
        self._stopped.set()

    def _rest(self, seconds: float) -> None:
        """Waits, at most until `stop`; notices Ctrl-C within a second.

        The wait is cut into pieces because a signal that another thread
        receives does not interrupt it.
        """
        deadline = time.monotonic() + seconds
        while (left_seconds := deadline - time.monotonic()) > 0:
            if self._stopped.wait(min(left_seconds, _WAKE_UP_SECONDS)):
                return

    def _load(self, checkpoint: Checkpoint, *, is_final: bool) -> int | None:
        """Loads a checkpoint; returns its step, or None after a failure."""
        if not self.model.built:
            # Some models create their weights with the first batch.
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
                "it is skipped" if is_given_up else "it is tried again",
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
            _logger.info("%d older checkpoints are skipped.", num_skipped)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            # Callbacks such as TensorBoard's read the step from it.
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
        # A warning, which Python prints even without a logging setup.
        _logger.warning(
            "No new checkpoint in %s for %.0f s.",
            self.checkpoint_dir,
            waited_seconds,
        )

    def _nothing_found(self, reason: str) -> errors.CheckpointNotFoundError:
        patterns = ", ".join(kind.pattern for kind in KINDS)
        error = errors.CheckpointNotFoundError(
            f"The evaluator ended without an evaluation: {reason}. "
            f"Expected files like {patterns} in the folder. Received: "
            f"checkpoint_dir={self.checkpoint_dir!r}. "
            + (
                "Make sure that the training saves its checkpoints there."
                if self._last_failure is None
                else "The last checkpoint could not be loaded; see the error "
                "above. Make sure that the model has the layers of the "
                "trained model."
            )
        )
        error.__cause__ = self._last_failure
        return error
