"""Tables whose rows every step can all update. Pure: no TensorFlow."""

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

# Share of the time between two updates, on the busiest parameter server.
SHARE_OF_A_STEP = 0.1


# Ratio of two step times that calls for another choice. The first calls of a
# training may run beside others that trace, and take long.
_OTHER_TIMES = 2.0
# Each choice may cause another trace of a step.
_MOST_CHOICES = 4


class StepTimes:
    """Step times that past choices of tables were based on.

    Threading: for one thread at a time.
    """

    def __init__(self) -> None:
        """Starts without times."""
        self._chosen_by: list[float] = []

    def differs(self, seconds: float) -> bool:
        """Returns whether a time calls for another choice, and records it.

        Args:
            seconds: Seconds between two updates.
        """
        if len(self._chosen_by) == _MOST_CHOICES:
            return False
        if self._chosen_by:
            latest = self._chosen_by[-1]
            if latest / _OTHER_TIMES <= seconds <= latest * _OTHER_TIMES:
                return False
        self._chosen_by.append(seconds)
        return True


@dataclasses.dataclass(frozen=True)
class UpdateCost:
    """Time of an update of all rows of a table.

    Attributes:
        table: A unique name of the table.
        seconds: Seconds on each parameter server that holds a shard, by device.
    """

    table: str
    seconds: Mapping[str, float]

    @property
    def most(self) -> float:
        """Seconds of the slowest parameter server."""
        return max(self.seconds.values(), default=0.0)


def affordable(
    costs: Iterable[UpdateCost],
    seconds_between_updates: float,
    chosen: Iterable[UpdateCost] = (),
) -> list[UpdateCost]:
    """Chooses tables whose rows are all updated, cheapest first.

    No parameter server spends more than `SHARE_OF_A_STEP` of its time on all
    of them together.

    Args:
        costs: Costs of the tables to choose from.
        seconds_between_updates: Seconds between two updates of a parameter
            server, with the updates of all workers.
        chosen: Costs of tables that are already chosen.

    Returns:
        The newly chosen ones, cheapest first.
    """
    most = SHARE_OF_A_STEP * seconds_between_updates
    spent: dict[str, float] = collections.defaultdict(float)
    for cost in chosen:
        for device, seconds in cost.seconds.items():
            spent[device] += seconds
    found = []
    for cost in sorted(costs, key=lambda cost: (cost.most, cost.table)):
        if all(
            spent[device] + seconds <= most
            for device, seconds in cost.seconds.items()
        ):
            found.append(cost)
            for device, seconds in cost.seconds.items():
                spent[device] += seconds
    return found
