"""Observation of the followed job: is it over?"""

import functools
import os
import time
from collections.abc import Callable
from collections.abc import Mapping

from tfps_plugin import errors
from tfps_plugin.cluster import health
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.serving import job_pipe
from tfps_plugin.cluster.serving import task_server
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.evaluation.endings import Silence

_PROBE_INTERVAL_SECONDS = 5.0
_PROBE_TIMEOUT_SECONDS = 2.0
# Long enough to restart a machine together with the ps on it.
_SILENCE_SECONDS = 60.0


class ProbedJob:
    """Job of a cluster whose addresses are known.

    Probes whether tasks are alive, and connects to none.

    Args:
        cluster: The cluster.
        start_timeout_seconds: Longest time until the first answer.
        silence_seconds: Longest time without an answer after that.
        interval_seconds: Time between two probes.

    Threading: for one thread only.
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
        """Returns whether neither chief nor ps has answered for a while."""
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
                pass  # It may come back as long as its ps are alive.
        answers = health.probe_all(
            self._parameter_servers, _PROBE_TIMEOUT_SECONDS
        )
        return any(
            isinstance(answer, health.TaskStatus) for answer in answers.values()
        )


def find(environ: Mapping[str, str] | None = None) -> Callable[[], bool]:
    """Finds the job that this process is the evaluator of.

    Args:
        environ: Environment variables; None for those of this process.

    Returns:
        A function that returns, at once, whether no task of the job writes
        checkpoints any more. A job about which nothing is known is never over,
        and one of a launcher on this machine ends with the chief.

    Raises:
        ClusterConfigurationError: If `TF_CONFIG` describes no usable cluster.
    """
    environ = os.environ if environ is None else environ
    pipe = job_pipe.find(environ)
    if pipe is not None:
        return functools.partial(job_pipe.is_closed, pipe)
    config = tf_config.read_tf_config(environ)
    if config is not None and config.job == EVALUATOR:
        return ProbedJob(config.cluster).is_over
    return lambda: False
