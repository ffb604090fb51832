"""Tests of amounts of memory and cores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.deployment import quantities


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8Gi", 8 * 2**30),
        ("512Mi", 2**29),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("2048Ki", 2**21),
        ("1048576", 2**20),
    ],
)
def test_memory(text: str, num_bytes: int) -> None:
    assert quantities.parse_memory(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "8", "8gb", "8 Gi", "-1Gi", "Gi", "1e9", "0Gi", "inf"]
)
def test_what_is_no_amount_of_memory_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="Expected an amount of memory") as e:
        quantities.parse_memory(text)
    assert repr(text) in str(e.value)


@pytest.mark.parametrize(
    ("text", "millicores"),
    [("4", 4000), ("0.5", 500), ("500m", 500), ("1.25", 1250)],
)
def test_cores(text: str, millicores: int) -> None:
    assert quantities.parse_cores(text) == millicores


@pytest.mark.parametrize("text", ["", "0", "-1", "four", "0.0001", "1k"])
def test_what_is_no_number_of_cores_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="Expected a number of cores"):
        quantities.parse_cores(text)


@given(st.integers(min_value=2**20, max_value=2**50))
def test_memory_is_read_as_it_is_written(num_bytes: int) -> None:
    text = quantities.memory_text(num_bytes)
    assert quantities.parse_memory(text) == num_bytes


@given(st.integers(min_value=1, max_value=10**6))
def test_cores_are_read_as_they_are_written(millicores: int) -> None:
    text = quantities.cores_text(millicores)
    assert quantities.parse_cores(text) == millicores


def test_whole_numbers_are_rounded_up() -> None:
    assert quantities.whole_cores(1001) == 2
    assert quantities.whole_cores(1000) == 1
    assert quantities.whole_mebibytes(2**20 + 1) == 2
    assert quantities.whole_mebibytes(2**20) == 1
