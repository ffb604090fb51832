"""Tests that objects from before the first strategy work, or are refused.

A process becomes a chief once, so all cases share one program and one cluster;
see `use_earlier_state.py`.
"""

import json
import pathlib
import subprocess
import sys

import pytest
import use_earlier_state


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str | None]:
    """Returns the error of each case; None if it succeeded."""
    folder = tmp_path_factory.mktemp("earlier_state")
    result = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            use_earlier_state.__file__,
            str(folder),
        ],
        cwd=pathlib.Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-6000:]
    found: dict[str, str | None] = json.loads(
        (folder / "result.json").read_text()
    )
    return found


@pytest.mark.parametrize("case", use_earlier_state.CASES)
def test_what_was_made_before_works_or_is_refused(
    results: dict[str, str | None], case: str
) -> None:
    assert results[case] is None, results[case]
