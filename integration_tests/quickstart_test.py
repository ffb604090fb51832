"""Tests of the README's example, as a user runs it."""

import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_EXAMPLE = _ROOT / "examples" / "quickstart.py"


def test_the_readme_shows_the_example_that_is_tested() -> None:
    assert _EXAMPLE.read_text() in (_ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable],
        [sys.executable, "-m", "tfps_plugin", "run", "--workers=2", "--ps=2"],
    ],
    ids=["embedded cluster", "tfps run"],
)
def test_it_trains_and_saves_a_plain_model(
    command: list[str], tmp_path: pathlib.Path
) -> None:
    ended = subprocess.run(
        [*command, str(_EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "200/200" in ended.stdout
    accuracies = [
        float(part.split()[0]) for part in ended.stdout.split("accuracy: ")[1:]
    ]
    assert accuracies[-1] > 0.8
    assert (tmp_path / "model.keras").stat().st_size > 100_000 * 16 * 4
