"""The methods of a coordinator that tell how fast its workers are."""

from collections.abc import Hashable

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.coordinator.stragglers.windows import Observation
from tfps_plugin.coordinator.stragglers.worker_rates import WorkerRate
from tfps_plugin.coordinator.worker_pool import WorkerPool


class RatedWorkers:
    """Knows the rates of workers; a base class of the coordinator.

    Threading: any thread.
    """

    _pool: WorkerPool

    def worker_rates(self) -> list[WorkerRate]:
        """Returns the rates at which workers make steps, by their latest calls.

        They are those of the work that ran last: the training of a model, its
        evaluation, or a `tf.function` that you schedule, of which each call is
        a step. Steps that workers make together, as with `tfps.Sync()`, have
        the same rate on all. `docs/stragglers.md` has more.

        Returns:
            A `WorkerRate` for each worker that takes part and has made at least
            two calls, by index: `steps_per_second`, `seconds_per_step`,
            `input_share`, `num_retries`, `expected_staleness` and others.
        """
        pool = self._pool
        return pool.watch.rates.rates(pool.present)

    def observe_steps(
        self,
        kind: Hashable,
        work: str,
        made: Observation,
        now: float,
        *,
        together: bool = False,
    ) -> None:
        """Records a call that makes steps; called by closures.

        Args:
            kind: Rates are compared among calls of one kind.
            work: A name of the kind, for people.
            made: The call.
            now: When it ended, in seconds.
            together: Whether workers wait for each other in such calls.
        """
        context = dispatch_context.required()
        self._pool.watch.observe(
            kind, work, context, made, now, together=together
        )

    def relative_speed(self, kind: Hashable) -> float:
        """Returns how fast the worker is that runs the calling closure.

        Args:
            kind: The kind of work.

        Returns:
            Its speed as a part of the median of the others, at most 1; also 1
            while it is unknown.
        """
        worker_index = dispatch_context.required().worker_index
        return self._pool.watch.rates.relative(kind, worker_index)
