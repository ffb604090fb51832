"""Workers compared with each other by their speed. Pure."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from tfps_plugin.coordinator.stragglers.windows import Speed


@dataclasses.dataclass(frozen=True)
class SlowWorker:
    """A worker that is slower than the others.

    Attributes:
        worker_index: Index of the worker.
        generation: Its generation.
        steps_per_second: Its rate.
        median_steps_per_second: The median of the rates of the others. If
            workers make steps together, all have the same rate, and this is
            the one that they would have.
        excess_seconds: Seconds by which its step takes longer than the
            median of the others.
        input_excess_seconds: The part of it that is longer waits for input;
            None if nobody knows.
        is_waited_for: Whether workers make steps together.
    """

    worker_index: int
    generation: int
    steps_per_second: float
    median_steps_per_second: float
    excess_seconds: float
    input_excess_seconds: float | None
    is_waited_for: bool = False


class Comparison(NamedTuple):
    """The workers of a kind of work, compared with each other.

    Attributes:
        slow: Those that are slow.
        even: Indices of those that are about as fast as the others. Those in
            between are in neither.
    """

    slow: tuple[SlowWorker, ...]
    even: frozenset[int]


def by_rate(
    speeds: Mapping[int, Speed],
    generations: Mapping[int, int],
    fraction: float,
) -> Comparison:
    """Compares workers that make steps by themselves.

    Slow is a worker whose rate is below the fraction of the median of the
    rates of the others, and so are three in four of its calls: one call that
    takes long makes no worker slow, nor do calls that differ by chance. A
    worker is even with the others again in the middle between the fraction and
    their rate.

    Args:
        speeds: The speed of each worker.
        generations: The generation of each.
        fraction: The fraction, between 0 and 1.

    Returns:
        The comparison; of no workers if there are fewer than two.
    """
    if len(speeds) < 2:
        return Comparison((), frozenset())
    each = list(speeds.values())
    rates = medians_of_others([own.steps_per_second for own in each])
    middles = medians_of_others([own.median_seconds for own in each])
    waits = _input_excess(each)
    enough = (1 + fraction) / 2
    slow, even = [], set()
    for index, own, rate, middle, wait in zip(
        speeds, each, rates, middles, waits, strict=True
    ):
        if (
            own.steps_per_second >= enough * rate
            and enough * own.median_seconds <= middle
        ):
            even.add(index)
        elif (
            own.steps_per_second < fraction * rate
            and fraction * own.most_seconds > middle
        ):
            slow.append(
                SlowWorker(
                    index,
                    generations[index],
                    own.steps_per_second,
                    rate,
                    own.median_seconds - middle,
                    wait,
                )
            )
    return Comparison(tuple(slow), frozenset(even))


def by_input(
    speeds: Mapping[int, Speed],
    generations: Mapping[int, int],
    fraction: float,
) -> Comparison:
    """Compares workers that make steps together.

    They have the same rate. Slow is a worker whose steps would take less than
    the fraction of their time if its input were as fast as that of others; in
    three of four of its calls, likewise. Nothing else is known.

    Args:
        speeds: The speed of each worker.
        generations: The generation of each.
        fraction: The fraction, between 0 and 1.

    Returns:
        The comparison; of no workers if there are fewer than two, or nobody
        knows how long they wait for input.
    """
    if len(speeds) < 2:
        return Comparison((), frozenset())
    each = list(speeds.values())
    waits = _input_excess(each)
    slow, even = [], set()
    for index, own, wait in zip(speeds, each, waits, strict=True):
        if (
            wait is None
            or own.most_input_seconds is None
            or own.median_input_seconds is None
        ):
            continue
        others = own.median_input_seconds - wait
        part = (own.most_input_seconds - others) / own.median_seconds
        if wait / own.median_seconds < (1 - fraction) / 2:
            even.add(index)
        elif part > 1 - fraction:
            # A worker makes no step in less than no time.
            without = max(0.1, 1 - wait / own.median_seconds)
            slow.append(
                SlowWorker(
                    index,
                    generations[index],
                    own.steps_per_second,
                    own.steps_per_second / without,
                    wait,
                    wait,
                    is_waited_for=True,
                )
            )
    return Comparison(tuple(slow), frozenset(even))


def relative_speeds(speeds: Mapping[int, Speed]) -> dict[int, float]:
    """Returns the speed of each worker as a part of the median of the others.

    Args:
        speeds: The speed of each worker.

    Returns:
        Numbers that are at most 1; none if there are fewer than two workers.
    """
    if len(speeds) < 2:
        return {}
    seconds = [own.median_seconds for own in speeds.values()]
    return {
        index: min(1.0, middle / own)
        for index, own, middle in zip(
            speeds, seconds, medians_of_others(seconds), strict=True
        )
    }


def medians_of_others(values: Sequence[float]) -> list[float]:
    """Returns for each of several values the median of the others.

    Sorts once, because there may be many workers.

    Args:
        values: At least two.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [values[index] for index in order]
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    found = [0.0] * len(values)
    for rank, index in enumerate(order):
        # Without the value of that rank, those behind it move up.
        below, above = (
            ranked[low + (low >= rank)],
            ranked[high + (high >= rank)],
        )
        found[index] = (below + above) / 2
    return found


def _input_excess(speeds: Sequence[Speed]) -> list[float | None]:
    """Returns by how much longer each waits for input than the others."""
    waits = [
        own.median_input_seconds
        for own in speeds
        if own.median_input_seconds is not None
    ]
    if len(waits) < len(speeds):
        return [None] * len(speeds)
    return [
        own - others
        for own, others in zip(waits, medians_of_others(waits), strict=True)
    ]
