"""Tests of summaries of what a parameter server holds."""

import pytest

from tfps_plugin.variables.sharding import holdings


def test_the_biggest_are_named() -> None:
    sizes = [("a", 512), ("b", 3 << 30), ("c", 1 << 20), ("d", 2048), ("e", 1)]
    assert holdings.describe(sizes) == (
        "3.0 GiB in 5 variables and shards; the biggest: b (3.0 GiB), "
        "c (1.0 MiB), d (2.0 KiB)"
    )


def test_nothing_is_held() -> None:
    assert holdings.describe([]) == "no variables"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 40, "5.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert holdings.describe([("a", num_bytes)]).startswith(f"{text} in 1 ")
