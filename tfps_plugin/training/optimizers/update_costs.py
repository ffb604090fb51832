"""Tables of which every step can update all rows. Pure: no TensorFlow."""

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

# Of the time between two updates, on the parameter server that is busiest.
SHARE_OF_A_STEP = 0.1


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
