"""Messages and operations of a step, by parameter server. Pure."""

import dataclasses
import re
from collections.abc import Mapping

from tfps_plugin.planning.work import PsWork
from tfps_plugin.transport.explanation import Body
from tfps_plugin.transport.explanation import Explanation

_INDEX = re.compile(r"/job:ps/.*task:(\d+)")
# The name of what a loop runs, in the name of a body.
_LOOP = "While body"


@dataclasses.dataclass(frozen=True, slots=True)
class StepMessages:
    """Messages and operations of a step.

    Attributes:
        ps: Messages and operations of each parameter server, without bytes.
        waves: Number of messages that follow one another.
        unsized: Number of values whose sizes are known only when it runs.
        inner: Number of messages of loops and branches in the step, each
            counted once.
    """

    ps: Mapping[int, PsWork]
    waves: int
    unsized: int
    inner: int


def of_step(explanation: Explanation) -> StepMessages:
    """Finds the messages of one step in those of a call that makes many.

    Args:
        explanation: What `strategy.explain` returns for a model.

    Returns:
        The messages of the loop over steps; those of a call are left out.
    """
    loops = [body for body in explanation.bodies if _depth(body) >= 1]
    steps = [body for body in loops if _depth(body) == 1]
    # A step without a loop: a function that a program schedules.
    chosen = steps or [*explanation.bodies]
    first = chosen[:1]
    messages: dict[int, int] = {}
    operations: dict[int, int] = {}
    waves = unsized = 0
    for body in first:
        for sent in body.sent:
            waves = max(waves, sent.wave + 1)
            unsized += sent.num_unsized
            for place in (sent.source, sent.destination):
                if (index := ps_index(place)) is not None:
                    messages[index] = messages.get(index, 0) + sent.num_parcels
        for place, number in body.operations:
            if (index := ps_index(place)) is not None:
                operations[index] = operations.get(index, 0) + number
    return StepMessages(
        {
            index: PsWork(
                messages=messages.get(index, 0),
                operations=operations.get(index, 0),
            )
            for index in sorted({*messages, *operations})
        },
        waves,
        unsized,
        sum(body.num_parcels for body in loops if body not in first),
    )


def ps_index(place: str) -> int | None:
    """Returns the index of a parameter server; None for another task.

    Args:
        place: Name of a task, as in an explanation.
    """
    match = _INDEX.match(place)
    return int(match[1]) if match else None


def _depth(body: Body) -> int:
    """Returns the number of loops that a body is in."""
    return body.name.count(_LOOP)
