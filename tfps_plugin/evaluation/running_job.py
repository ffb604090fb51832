"""Is the job that is followed over?"""

import os
import time
from collections.abc import Mapping
from typing import Protocol

from tfps_plugin import errors
from tfps_plugin.cluster import health
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.serving import job_pipe
from tfps_plugin.cluster.serving import task_server
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.evaluation.silence import Silence

_PROBE_INTERVAL_SECONDS = 5.0
_PROBE_TIMEOUT_SECONDS = 2.0
# Long enough for a machine that is restarted together with its ps to be back.
_SILENCE_SECONDS = 60.0


class RunningJob(Protocol):
    """The job whose checkpoints are evaluated."""

    def is_over(self) -> bool:
        """Whether nobody writes checkpoints any more; never waits long."""


class UnknownJob:
    """A job of which nothing is known: it is never over."""

    def is_over(self) -> bool:
        """False."""
        return False


class LaunchedJob:
    """The job of a launcher on this machine; ends with the chief.

    Args:
        pipe: From `job_pipe.find`.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def is_over(self) -> bool:
        """Whether the chief has ended."""
        return job_pipe.is_closed(self._pipe)


class ProbedJob:
    """The job of a cluster whose addresses are known.

    It asks tasks whether they live, and connects to none.

    Args:
        cluster: The cluster.
        start_timeout_seconds: How long to wait for the first answer.
        silence_seconds: How long nobody may answer.
        interval_seconds: How often to ask.

    Threading: of one thread.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        *,
        start_timeout_seconds: float = task_server.CHIEF_START_TIMEOUT_SECONDS,
        silence_seconds: float = _SILENCE_SECONDS,
        interval_seconds: float = _PROBE_INTERVAL_SECONDS,
    ) -> None:
        self._chief = cluster.chief
        self._parameter_servers = cluster.parameter_servers
        self._interval_seconds = interval_seconds
        now = time.monotonic()
        self._next_probe = now
        self._silence = Silence(
            now,
            start_timeout_seconds=start_timeout_seconds,
            silence_seconds=silence_seconds,
        )

    def is_over(self) -> bool:
        """Whether neither chief nor ps has answered for a while."""
        if time.monotonic() >= self._next_probe:
            answered = self._does_anybody_answer()
            now = time.monotonic()
            self._silence.probed(answered, now)
            self._next_probe = now + self._interval_seconds
        return self._silence.is_over(time.monotonic())

    def _does_anybody_answer(self) -> bool:
        if self._chief is not None:
            try:
                health.probe_task(self._chief, _PROBE_TIMEOUT_SECONDS)
                return True
            except errors.TaskUnreachableError:
                pass  # It may come back, as long as its ps are there.
        answers = health.probe_all(
            self._parameter_servers, _PROBE_TIMEOUT_SECONDS
        )
        return any(
            isinstance(answer, health.TaskStatus) for answer in answers.values()
        )


def find(environ: Mapping[str, str] | None = None) -> RunningJob:
    """The job that this process is the evaluator of.

    Args:
        environ: The environment; None is this process's own.

    Raises:
        ClusterConfigurationError: If `TF_CONFIG` describes no usable cluster.
    """
    environ = os.environ if environ is None else environ
    pipe = job_pipe.find(environ)
    if pipe is not None:
        return LaunchedJob(pipe)
    config = tf_config.read_tf_config(environ)
    if config is not None and config.job == EVALUATOR:
        return ProbedJob(config.cluster)
    return UnknownJob()
