"""Tests of the division of cores among tasks."""

import collections
import pathlib

import hypothesis
import pytest
from hypothesis import strategies as st

from tfps_plugin.cluster.machine import core_shares


def _machine(
    folder: pathlib.Path, cores: dict[int, tuple[int, str]]
) -> pathlib.Path:
    """Describes cores by their processors and siblings, as Linux does."""
    for core, (package, siblings) in cores.items():
        topology = folder / f"cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    return folder


@hypothesis.given(
    st.integers(1, 12),
    st.sets(st.integers(0, 99), min_size=1, max_size=20),
    st.integers(1, 2),
)
def test_all_cores_are_used_and_shared_evenly(
    num_tasks: int, firsts: set[int], threads: int
) -> None:
    groups = [
        frozenset(100 * thread + core for thread in range(threads))
        for core in sorted(firsts)
    ]
    shares = [core_shares.share(n, num_tasks, groups) for n in range(num_tasks)]
    users = collections.Counter(core for share in shares for core in share)
    assert set(users) == frozenset().union(*groups)
    assert max(users.values()) - min(users.values()) <= 1
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= threads
    if num_tasks <= len(groups):
        assert max(users.values()) == 1
    for group in groups:
        assert all(group <= share or not group & share for share in shares)


@pytest.mark.parametrize("siblings", [("0,2", "1,3"), ("0-1", "2-3")])
def test_hyper_threads_stay_together(
    siblings: tuple[str, str], tmp_path: pathlib.Path
) -> None:
    separator = siblings[0][1]
    pairs = [frozenset(map(int, each.split(separator))) for each in siblings]
    machine = _machine(
        tmp_path,
        {
            core: (0, text)
            for text, pair in zip(siblings, pairs, strict=True)
            for core in pair
        },
    )
    groups = core_shares.physical_cores(range(4), machine)
    assert groups == pairs
    assert [core_shares.share(n, 2, groups) for n in range(2)] == pairs


def test_tasks_stay_on_one_processor(tmp_path: pathlib.Path) -> None:
    # Even cores are on one processor, odd ones on the other.
    machine = _machine(tmp_path, {n: (n % 2, str(n)) for n in range(4)})
    groups = core_shares.physical_cores({0, 1, 2, 3}, machine)
    assert core_shares.share(0, 2, groups) == {0, 2}
    assert core_shares.share(1, 2, groups) == {1, 3}


def test_an_unknown_machine_has_no_hyper_threads(
    tmp_path: pathlib.Path,
) -> None:
    assert core_shares.physical_cores({5, 3}, tmp_path) == [{3}, {5}]
