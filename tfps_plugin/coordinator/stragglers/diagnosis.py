"""Reason why a worker is slow. Pure: no TensorFlow."""

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from tfps_plugin.coordinator.stragglers.comparison import SlowWorker

# A link that is slower by less explains nothing: so much may be chance.
_LEAST_EXCESS_SECONDS = 1e-3
# Nor does one whose probe is slower by a smaller part of what a step takes
# longer. A step exchanges about as much as a probe, or many times that.
_LEAST_PART = 0.02

# Seconds of a probe for each parameter server, by worker.
Probes = Mapping[int, Mapping[int, float]]


class Diagnosis(NamedTuple):
    """Reason why a worker is slow.

    Attributes:
        slow_at: "input", "compute", "network", or "compute or network" if the
            network could not be measured.
        detail: What was found, a clause for people; may be empty.
    """

    slow_at: str
    detail: str


def of_input(slow: SlowWorker) -> Diagnosis | None:
    """Returns the diagnosis if it is the input; otherwise None."""
    waits = slow.input_excess_seconds
    if waits is None or 2 * waits < slow.excess_seconds:
        return None
    return Diagnosis(
        "input",
        f"its steps wait {_milliseconds(waits)} longer for their batch than "
        "those of others",
    )


def of_probes(slow: SlowWorker, probes: Probes, fraction: float) -> Diagnosis:
    """Returns the diagnosis of a worker that is not slow at input.

    Args:
        slow: The worker.
        probes: What the network takes; of some workers, or none.
        fraction: The fraction of the median below which a rate is slow.
    """
    own = probes.get(slow.worker_index)
    others = [
        probe for index, probe in probes.items() if index != slow.worker_index
    ]
    if own is None or not others:
        return Diagnosis(
            "compute or network", "the network could not be measured"
        )
    # By the index of the parameter server; one may have come meanwhile.
    middle = {
        ps: statistics.median(probe[ps] for probe in others)
        for ps in own
        if all(ps in probe for probe in others)
    }
    least = max(_LEAST_EXCESS_SECONDS, _LEAST_PART * slow.excess_seconds)
    links = [
        (own[ps] - usual, ps, own[ps], usual)
        for ps, usual in middle.items()
        if fraction * own[ps] > usual and own[ps] - usual >= least
    ]
    if not links:
        return Diagnosis("compute", "its input and its network are not slow")
    _, ps, seconds, usual = max(links)
    where = f"parameter server {ps}"
    if len(links) == len(own) > 1:
        where = f"each parameter server, most of all from {where}"
    return Diagnosis(
        "network",
        f"256 KB take {_milliseconds(seconds)} from {where}; "
        f"{_milliseconds(usual)} on other workers",
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
