import pytest

from tfps_plugin import errors
from tfps_plugin.planning import machines
from tfps_plugin.planning.machines import Machines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25Gb", 25e9),
        ("900 Mb", 900e6),
        ("1.5Tbit/s", 1.5e12),
        ("100bps", 100),
        (" 10Gbps ", 10e9),
    ],
)
def test_networks_are_read(text: str, expected: float) -> None:
    assert machines.bits_per_second(text) == expected


# Bytes, as in GB, are another number.
@pytest.mark.parametrize("text", ["", "25", "25GB", "0Gb", "-1Gb", "Gb"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(errors.PlanError, match="such as 25Gb"):
        machines.bits_per_second(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": 0},
        {"num_ps": 0},
        {"bits_per_second": 0.0},
        {"latency_seconds": -1.0},
        {"shared_cores": 0.0},
        {"steps_per_call": 0},
    ],
)
def test_impossible_clusters_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(errors.PlanError, match=f"{name}="):
        Machines(**{"num_workers": 1, "num_ps": 1, **wrong})  # type: ignore[arg-type]
