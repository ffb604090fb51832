"""Objects by which workers and parameter servers make steps together."""

import logging
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tfps_plugin.cluster.chief import connection
from tfps_plugin.coordinator import error_text
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.training.synchronous.applier import Applier
from tfps_plugin.training.synchronous.backup.refereed_applier import (
    RefereedApplier,
)
from tfps_plugin.training.synchronous.global_step import GlobalStep
from tfps_plugin.training.synchronous.span import Span

_logger = logging.getLogger("tfps_plugin.training")

# Number of times in a row, without a step between them.
_MOST_SET_BACKS = 3


class Together(NamedTuple):
    """Objects by which workers and ps make a step together.

    Attributes:
        step: The queues of the step.
        appliers: The applier of each ps.
        relay: The chief's function for `step.norms`; None if it has none.
        referee: The chief's function of `step.referee`, likewise.
    """

    step: GlobalStep
    appliers: list[Applier]
    relay: Callable[[], Any] | None
    referee: Callable[..., Any] | None


def make_together(
    strategy: Any, step: GlobalStep, owner: Any = None
) -> Together:
    """Returns what workers and ps need to make a step together.

    Args:
        strategy: The strategy; the caller is in its scope.
        step: A step that was traced.
        owner: The model that has the step, if one does; see
            `ParameterServerStrategy.fused`.
    """
    if step.together is None:
        step.together = Together(
            step,
            [_applier(step, ps) for ps in range(len(step.devices))],
            None
            if step.norms is None
            else strategy.fused(step.norms.relay, owner, "chief"),
            None
            if step.referee is None
            else strategy.fused(step.referee.function, owner, "chief"),
        )
    together: Together = step.together
    return together


def _applier(step: GlobalStep, ps: int) -> Applier:
    if step.referee is None:
        return Applier(step, ps)
    return RefereedApplier(step, ps, step.referee)


class _SetBacks:
    """Number of times in a row that steps were undone; part of a connection.

    Threading: only the thread that makes spans uses it.
    """

    def __init__(self) -> None:
        self.number = 0


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
        """Undoes steps that some ps may have made, and others not.

        A ps that was lost has taken all variables back to a checkpoint. A call
        of a ps may also fail although all ps answer, for example because
        TensorFlow has lost the function that it had prepared there. Then all
        variables go back by this.

        Args:
            span: A span that has ended.

        Raises:
            BaseException: The error of the span, if there is no checkpoint to
                go back to, or if that did not help several times.
        """
        tries = connection.present().part(_SetBacks)
        if span.num_done:
            tries.number = 0
        if span.error is None or self.has_recovered:
            return
        if tries.number < _MOST_SET_BACKS:
            tries.number += 1
            self._coordinator.set_back()
        if not self.has_recovered:
            raise span.error
        _logger.warning(
            "The call of a parameter server failed, although all of them "
            "answer. Some may have made a step that others have not: all "
            "variables went back to the last checkpoint. If this happens "
            "often, look at the logs of the parameter servers. Received: "
            "%s: %s",
            type(span.error).__name__,
            error_text.shortened(str(span.error)),
        )

    @property
    def has_recovered(self) -> bool:
        """True if a ps has recovered since the latest span was made."""
        num_recovered = self._coordinator.counters.value("ps_recovered")
        return num_recovered > self._num_recovered
