"""Objects by which workers and parameter servers make steps together."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.training.synchronous.applier import Applier
from tfps_plugin.training.synchronous.global_step import GlobalStep
from tfps_plugin.training.synchronous.span import Span


class Together(NamedTuple):
    """Objects by which workers and ps make a step together.

    Attributes:
        step: The queues of the step.
        appliers: The applier of each ps.
        relay: The chief's function for `step.norms`; None if it has none.
    """

    step: GlobalStep
    appliers: list[Applier]
    relay: Callable[[], Any] | None


def make_together(strategy: Any, step: GlobalStep) -> Together:
    """Returns what workers and ps need to make a step together.

    Args:
        strategy: The strategy; the caller is in its scope.
        step: A step that was traced.
    """
    if step.together is None:
        step.together = Together(
            step,
            [Applier(step, ps) for ps in range(len(step.devices))],
            None if step.norms is None else strategy.fused(step.norms.relay()),
        )
    together: Together = step.together
    return together


class GlobalSteps:
    """Makes spans of global steps, and judges how they have ended."""

    def __init__(
        self, coordinator: ClusterCoordinator, together: Together
    ) -> None:
        """Prepares.

        Args:
            coordinator: Runs the closures.
            together: What workers and ps need to make a step together.
        """
        self._coordinator = coordinator
        self._together = together
        self._num_recovered = 0

    def span(
        self,
        members: Sequence[int],
        num_steps: int,
        make: Callable[[int, int], bool],
        on_ended: Callable[[], None],
    ) -> Span:
        """Returns a span that has not begun; see `Span`."""
        self._num_recovered = self._coordinator.counters.value("ps_recovered")
        return Span(
            self._coordinator,
            *self._together,
            members,
            num_steps,
            make,
            on_ended,
        )

    def require_recovered(self, span: Span) -> None:
        """Refuses to go on where some ps may have made more steps than others.

        Raises:
            BaseException: The error of the span, unless all variables went
                back since it began.
        """
        if span.error is not None and not self.has_recovered:
            raise span.error

    @property
    def has_recovered(self) -> bool:
        """True if a ps has recovered since the latest span was made."""
        num_recovered = self._coordinator.counters.value("ps_recovered")
        return num_recovered > self._num_recovered
