"""Full checkpoints and their increments."""

import hypothesis
import pytest
from hypothesis import strategies as st

from tfps_plugin.recovery.incremental import chain
from tfps_plugin.recovery.incremental.chain import Change
from tfps_plugin.recovery.incremental.chain import Link


def test_increments_stand_beside_their_full_one() -> None:
    folder = chain.folder_of_increments("/c/ckpt-10")
    assert chain.full_one_of(f"{folder}/ckpt-11") == "/c/ckpt-10"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ckpt-10.increments", 10),
        # As remote file systems list a folder.
        ("ckpt-10.increments/", 10),
        ("ckpt-10", None),
        ("ckpt-x.increments", None),
        ("other-10.increments", None),
    ],
)
def test_folders_of_increments_are_known(name: str, number: int | None) -> None:
    assert chain.number_of_full(name, "ckpt") == number


def test_a_description_is_read_back() -> None:
    links = [Link("ckpt-1", 5), Link("ckpt-1.increments/ckpt-2", 2**32 - 1)]
    assert chain.parse(chain.describe(links).encode()) == links


@hypothesis.given(
    st.text(min_size=1), *[st.integers(0, 2**40) for _ in range(3)]
)
def test_changes_are_found_by_their_keys(
    key: str, first: int, end: int, piece: int
) -> None:
    change = Change(key, first, end, piece)
    keys: dict[str, list[int]] = {
        change.rows_key: [],
        change.values_key: [],
        key: [],
        "other": [],
    }
    assert chain.changes_in(keys) == {key: [change]}


@hypothesis.given(*[st.integers(0, 20) for _ in range(4)])
def test_a_change_concerns_parts_that_share_a_row(
    first: int, size: int, other: int, other_size: int
) -> None:
    change = Change("k", first, first + size, 0)
    shared = set(range(first, first + size)) & set(
        range(other, other + other_size)
    )
    # Parts are never empty; then it is exact.
    if size and other_size:
        assert change.concerns(other, other + other_size) == bool(shared)


def test_a_chain_is_deleted_as_a_whole() -> None:
    chains = {1: 1, 2: 1, 3: 1, 4: 4, 5: 4}
    assert chain.to_delete([], chains) == []
    assert chain.to_delete([1, 2], chains) == []
    assert chain.to_delete([1, 2, 3], chains) == [1]
    assert chain.to_delete([1, 2, 3, 4], chains) == [1]
    assert chain.to_delete([1, 2, 3, 4, 5], chains) == [1, 4]
