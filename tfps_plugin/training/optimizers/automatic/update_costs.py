"""Tables of which every step can update all rows. Pure: no TensorFlow."""

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

# Of the time between two updates, on the parameter server that is busiest.
SHARE_OF_A_STEP = 0.1


# Of two times of a step that call for another choice. The first calls of a
# training may run beside others that trace, and take long.
_OTHER_TIMES = 2.0
# Each choice may have a step traced once more.
_MOST_CHOICES = 4


class StepTimes:
    """The times of a step that tables were chosen by.

    Threading: for one thread at a time.
    """

    def __init__(self) -> None:
        """Knows none."""
        self._chosen_by: list[float] = []

    def differs(self, seconds: float) -> bool:
        """Returns whether a time calls for another choice, and notes it.

        Args:
            seconds: Between two updates.
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
    """Time that an update of all rows of a table takes.

    Attributes:
        table: Any name that no other table has.
        seconds: Of each parameter server that holds a shard, by its device.
    """

    table: str
    seconds: Mapping[str, float]

    @property
    def most(self) -> float:
        """Seconds of the parameter server that takes longest."""
        return max(self.seconds.values(), default=0.0)


def affordable(
    costs: Iterable[UpdateCost],
    seconds_between_updates: float,
    chosen: Iterable[UpdateCost] = (),
) -> list[UpdateCost]:
    """Chooses tables whose rows are all updated, the cheapest first.

    No parameter server spends more than `SHARE_OF_A_STEP` of its time on all
    of them together.

    Args:
        costs: Of the tables to choose from.
        seconds_between_updates: Of a parameter server, by all workers.
        chosen: Of tables that are chosen already.

    Returns:
        Those that are chosen in addition, the cheapest first.
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
