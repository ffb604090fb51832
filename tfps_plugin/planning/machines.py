"""Machines that a plan is for: their number, cores and network. Pure."""

import dataclasses
import re

from tfps_plugin import errors

_BITS = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:b|bit|bps)(?:/s)?")
_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclasses.dataclass(frozen=True, slots=True)
class Machines:
    """The cluster of a plan.

    Attributes:
        num_workers: Number of workers, one a machine.
        num_ps: Number of parameter servers, one a machine.
        bits_per_second: Speed of the network of each machine, one way.
        latency_seconds: Time of a message one way, besides its bytes.
        ps_cores: Number of cores of a parameter server.
        shared_cores: Number of cores that all tasks share, on one machine;
            None: each task has a machine.
        steps_per_call: Number of steps in a call of a worker; None: as many as
            `fit` chooses.
    """

    num_workers: int
    num_ps: int
    bits_per_second: float = 10e9
    latency_seconds: float = 100e-6
    ps_cores: int = 8
    shared_cores: float | None = None
    steps_per_call: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_workers", "num_ps", "bits_per_second", "ps_cores"):
            _require(name, getattr(self, name), getattr(self, name) > 0)
        _require(
            "latency_seconds", self.latency_seconds, self.latency_seconds >= 0
        )
        for name in ("shared_cores", "steps_per_call"):
            value = getattr(self, name)
            _require(name, value, value is None or value > 0)


def bits_per_second(text: str) -> float:
    """Reads the speed of a network.

    Args:
        text: Such as "25Gb", "10Gbit/s" or "900 Mb": bits, not bytes.

    Raises:
        PlanError: If it is none.
    """
    match = _BITS.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise errors.PlanError(
            "The speed of the network is wrong. Expected bits a second, such "
            f"as 25Gb or 900Mb. Received: {text!r}"
        )
    return float(match[1]) * _FACTORS[match[2]]


def _require(name: str, value: object, is_right: bool) -> None:
    if not is_right:
        raise errors.PlanError(
            "The cluster of a plan is wrong. Expected a positive number. "
            f"Received: {name}={value!r}"
        )
