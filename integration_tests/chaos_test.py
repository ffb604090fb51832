"""Tests that training goes on, whatever dies and when.

    pytest -s integration_tests/chaos_test.py
    TFPS_CHAOS_KILLS=60 TFPS_CHAOS_EPOCHS=20 \\
        pytest -s integration_tests/chaos_test.py --sample-seed 7

The flights example runs under `tfps run`. A third of the tasks die, and the AUC
has to be one that was learned. With `--all`, every task dies, there are 20
kills, workers train asynchronously and in step, and the AUC has to be that of
an undisturbed run. The victims and the moments are drawn from the seed of the
samples, which is printed:

- most die alone; some die while another is being started again, and before
  training has recovered from its death;
- some die while a backup is written, the others between two.

The next blow comes when the one before was survived: when all that died are
started again and training has made two backups.
"""

import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_WORKERS, _PS = 3, 2
# A third of the tasks, of which the chief is one.
_KILLS_OF_A_SAMPLE = (_WORKERS + _PS + 1) // 3
_KILLS_OF_ALL = 20
# So many that training lasts until the last blow, on a fast machine, too.
_EPOCHS_OF_A_SAMPLE, _EPOCHS_OF_ALL = 2, 12
# Workers in step share it.
_BATCH_SIZE = 510
_STEPS_BETWEEN_BACKUPS = 40
_BACKUPS_BETWEEN_KILLS = 2
# How often a task dies together with the one before it, and how often while a
# backup is written.
_TOGETHER = 0.3
_WHILE_WRITING = 0.3
# Two epochs reach 0.69 to 0.70; what always predicts the same has 0.5.
_LEAST_AUC = 0.65
# A chief that died imports TensorFlow again, builds, and trains on; on a busy
# machine that alone is a minute.
_SECONDS_PER_KILL = 150.0
_SECONDS_PER_EPOCH = 120.0
_SECONDS_TO_START_AND_TEST = 180.0


class _Run:
    """A run of the example under `tfps run`."""

    def __init__(
        self,
        folder: pathlib.Path,
        num_epochs: int,
        consistency: str,
        *options: str,
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tfps_plugin", "run"),
                    *("--workers", str(_WORKERS), "--ps", str(_PS)),
                    *options,
                    str(_ROOT / "examples" / "flights.py"),
                    *("--skip-baseline", "--epochs", str(num_epochs)),
                    *("--consistency", consistency),
                    *("--batch-size", str(_BATCH_SIZE)),
                    *("--output-dir", str(folder / "output")),
                    *("--backup-dir", str(folder / "backup")),
                    *("--backup-steps", str(_STEPS_BETWEEN_BACKUPS)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )

    def __enter__(self) -> "_Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def backups(self) -> int:
        """Returns the number of backups made, including deleted ones."""
        numbers = [
            int(path.stem.removeprefix("ckpt-"))
            for path in (self._folder / "backup").glob("ckpt-*.index")
        ]
        return max(numbers, default=0)

    def is_writing(self) -> bool:
        """Returns whether a backup is being written now."""
        return any((self._folder / "backup").glob(".writing*"))

    def kill(self, task: str) -> Callable[[], bool]:
        """Kills a task; returns a check whether it has been started again."""
        started = re.findall(
            rf"{task}(?: again)? \(pid (\d+)\)", before := self.log()
        )
        os.killpg(int(started[-1]), signal.SIGKILL)
        again = f"started {task} again"
        count = before.count(again)
        return lambda: self.log().count(again) > count

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        """Waits until a condition holds; the run must go on meanwhile."""
        deadline = time.monotonic() + seconds
        never = threading.Event()
        while not condition():
            log = (
                self.log()[-20_000:] if self.process.poll() is not None else ""
            )
            assert not log, f"The run has ended too early:\n{log}"
            assert time.monotonic() < deadline, self.log()[-20_000:]
            never.wait(0.05)

    def auc(self, seconds: float) -> float:
        """Waits for the end of the run, and returns its AUC."""
        assert self.process.wait(seconds) == 0, self.log()[-20_000:]
        (auc,) = re.findall(r"cluster +(0\.\d+) +0\.\d+", self.log())
        return float(auc)


@dataclasses.dataclass(frozen=True)
class _Blow:
    """Tasks that die together, and the moment.

    Attributes:
        victims: Tasks; each later one dies while the one before it is away.
        while_writing: Whether the first dies while a backup is written.
    """

    victims: list[str]
    while_writing: bool

    def __str__(self) -> str:
        moment = " (while a backup is written)" if self.while_writing else ""
        return " + ".join(self.victims) + moment


def _draw_blows(num_kills: int, seed: int) -> list[_Blow]:
    drawn = random.Random(seed)
    tasks = [f"worker {i}" for i in range(_WORKERS)]
    tasks += [f"ps {i}" for i in range(_PS)] + ["chief"]
    # Each task dies at least once, if there are enough kills.
    victims = drawn.sample(tasks, min(num_kills, len(tasks)))
    victims += drawn.choices(tasks, k=num_kills - len(victims))
    blows: list[_Blow] = []
    for victim in victims:
        last = blows[-1].victims if blows else [victim]
        if victim not in last and drawn.random() < _TOGETHER:
            last.append(victim)
        else:
            blows.append(_Blow([victim], drawn.random() < _WHILE_WRITING))
    return blows


def _strike(run: _Run, blow: _Blow) -> None:
    """Kills the victims, and waits until the run has recovered."""
    if blow.while_writing:
        run.wait_for(run.is_writing, _SECONDS_PER_KILL)
    are_back = [run.kill(victim) for victim in blow.victims]
    seconds = _SECONDS_PER_KILL * len(are_back)
    run.wait_for(lambda: all(is_back() for is_back in are_back), seconds)
    enough = run.backups() + _BACKUPS_BETWEEN_KILLS
    run.wait_for(lambda: run.backups() >= enough, seconds)


def _seconds_to_train(num_epochs: int) -> float:
    return _SECONDS_TO_START_AND_TEST + num_epochs * _SECONDS_PER_EPOCH


@pytest.mark.timeout(
    2 * _seconds_to_train(_EPOCHS_OF_ALL)
    + 2 * _KILLS_OF_ALL * _SECONDS_PER_KILL
)
@pytest.mark.parametrize("consistency", ["async", "sync"])
@pytest.mark.sample(cases=1)
def test_training_survives_every_kill(
    tmp_path: pathlib.Path, pytestconfig: pytest.Config, consistency: str
) -> None:
    runs_all = pytestconfig.getoption("all")
    seed = pytestconfig.getoption("sample_seed")
    num_kills = _number(
        "KILLS", _KILLS_OF_ALL if runs_all else _KILLS_OF_A_SAMPLE
    )
    num_epochs = _number(
        "EPOCHS", _EPOCHS_OF_ALL if runs_all else _EPOCHS_OF_A_SAMPLE
    )
    seconds = _seconds_to_train(num_epochs)
    undisturbed = None
    if runs_all:
        with _Run(tmp_path / "undisturbed", num_epochs, consistency) as run:
            undisturbed = run.auc(seconds)
    blows = _draw_blows(num_kills, seed)
    print(
        f"\n{consistency}, seed {seed}: {', '.join(map(str, blows))}",
        flush=True,
    )
    started = time.monotonic()
    restarts = ("--max-restarts", "1000")
    with _Run(tmp_path / "chaos", num_epochs, consistency, *restarts) as run:
        run.wait_for(lambda: run.backups() > 1, _SECONDS_TO_START_AND_TEST)
        for blow in blows:
            struck = time.monotonic()
            _strike(run, blow)
            lasted = time.monotonic() - struck
            print(f"  {blow}: survived, {lasted:.1f} s", flush=True)
        auc = run.auc(seconds)
    print(
        f"AUC {auc:.4f}, undisturbed {undisturbed or 'not run'}, "
        f"{time.monotonic() - started:.0f} s with {num_kills} kills",
        flush=True,
    )
    assert auc > _LEAST_AUC
    if undisturbed is not None:
        assert auc == pytest.approx(undisturbed, abs=0.01)


def _number(name: str, default: int) -> int:
    return int(os.environ.get(f"TFPS_CHAOS_{name}", default))
