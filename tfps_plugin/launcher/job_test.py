"""Jobs of real processes, each a line of Python without TensorFlow."""

import io
import os
import pathlib
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from tfps_plugin.cluster.output.console import Console
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.launcher import control_socket
from tfps_plugin.launcher.job import Job
from tfps_plugin.launcher.process_plan import ProcessPlan
from tfps_plugin.launcher.process_plan import plan_cluster
from tfps_plugin.launcher.scaling import Scaling
from tfps_plugin.launcher.task_range import TaskRange

# In short naps: a signal that arrives just before a nap is not overslept.
_NAPS = "while True: signal.sigtimedwait((), 0.05)"
_FOREVER = f"import signal\n{_NAPS}"
_ONE_SECOND: dict[str, Any] = {"grace_seconds": 1.0, "evaluator_seconds": 1.0}
_INTERRUPT_LAUNCHER = "import os, signal; os.kill(os.getppid(), signal.SIGINT)"


class _Run:
    """A job that has run, with what it wrote."""

    def __init__(
        self,
        grace_seconds: float = 20.0,
        evaluator_seconds: float = 20.0,
        is_quiet: bool = False,
        scaling: Scaling | None = None,
        **programs: str | Sequence[str],
    ) -> None:
        plans = [
            ProcessPlan(
                name.replace("_", " "),
                ("-c", source, *arguments),
                {"TF_CONFIG": "{}"},
            )
            for name, (source, *arguments) in (
                (name, [program] if isinstance(program, str) else program)
                for name, program in programs.items()
            )
        ]
        out, err = io.StringIO(), io.StringIO()
        console = Console(
            [*(plan.name for plan in plans), "ps 1"], {}, out, err
        )
        job = Job(
            plans,
            console,
            os.environ,
            grace_seconds=grace_seconds,
            evaluator_seconds=evaluator_seconds,
            is_quiet=is_quiet,
            scaling=scaling,
        )
        self.status = job.run()
        self.out = out.getvalue()
        self.err = err.getvalue()


@pytest.fixture
def fifo(tmp_path: pathlib.Path) -> str:
    """A named pipe by which the tasks of a job wait for each other."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path


def test_each_stream_arrives_with_its_label() -> None:
    run = _Run(
        chief="import os, sys; print(os.environ['TF_CONFIG'])\n"
        "sys.exit('an error')"
    )
    assert run.out == "chief | {}\n"
    assert "chief | an error\n" in run.err


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_chiefs(code: int) -> None:
    run = _Run(chief=f"raise SystemExit({code})", ps_0=_FOREVER)
    assert run.status == code


def test_a_chief_that_is_killed_is_reported_with_its_last_lines() -> None:
    run = _Run(chief="import os\nprint('last words')\nos.abort()")
    assert run.status == 128 + signal.SIGABRT
    assert "tfps  | chief was killed by SIGABRT (signal 6" in run.err
    assert "tfps  |   last words\n" in run.err


def test_a_worker_that_dies_is_reported_and_the_job_goes_on(fifo: str) -> None:
    run = _Run(
        worker_0=(
            "import os, sys; end = open(sys.argv[1], 'w');"
            "print('some trouble'); os.kill(os.getpid(), 9)",
            fifo,
        ),
        # Reads until the worker, dead, has closed its end.
        chief=(
            "import sys; open(sys.argv[1]).read(); print('I go on')",
            fifo,
        ),
    )
    assert run.status == 0
    assert "worker 0 was killed by SIGKILL (signal 9" in run.err
    assert "tfps     |   some trouble" in run.err
    assert run.out.endswith("chief    | I go on\n")


def test_a_task_that_ends_well_is_not_reported(fifo: str) -> None:
    run = _Run(
        ps_0=("import sys; open(sys.argv[1], 'w')", fifo),
        chief=("import sys; open(sys.argv[1]).read()", fifo),
    )
    assert run.status == 0
    assert "ps 0 ended" not in run.err


# Waits until the launcher says that the chief has ended.
_FOLLOWS = """
import os, select, sys, tfps_plugin.cluster.serving.job_pipe as job_pipe
pipe = job_pipe.find(os.environ)
assert not job_pipe.is_closed(pipe)
open(sys.argv[1], 'w').close()
select.select([pipe], [], [])
assert job_pipe.is_closed(pipe)
print('the last checkpoint is evaluated')
"""
_WAITS_FOR_EVALUATOR = "import sys; open(sys.argv[1]).read()"


@pytest.mark.parametrize("code", [0, 3])
def test_the_evaluator_may_finish_when_the_chief_has_ended(
    code: int, fifo: str
) -> None:
    run = _Run(
        ps_0=_FOREVER,
        evaluator=(f"{_FOLLOWS}\nsys.exit({code})", fifo),
        chief=(f"{_WAITS_FOR_EVALUATOR}; sys.exit(7)", fifo),
    )
    assert run.status == 7
    assert "evaluator | the last checkpoint is evaluated\n" in run.out
    assert ("evaluator ended with exit code 3" in run.err) == (code == 3)
    assert ("The training had ended before." in run.err) == (code == 3)


def test_an_evaluator_that_takes_too_long_is_ended(fifo: str) -> None:
    run = _Run(
        evaluator_seconds=0.1,
        evaluator=(f"{_FOLLOWS}\n{_FOREVER}", fifo),
        chief=(_WAITS_FOR_EVALUATOR, fifo),
    )
    assert run.status == 0
    assert "evaluator may go on for 0.1 s" in run.err
    assert "evaluator was killed" not in run.err


def test_the_death_of_an_evaluator_ends_nothing(fifo: str) -> None:
    run = _Run(
        evaluator=(
            "import os, sys; end = open(sys.argv[1], 'w'); os.abort()",
            fifo,
        ),
        chief=(f"{_WAITS_FOR_EVALUATOR}; print('I go on')", fifo),
    )
    assert run.status == 0
    assert "evaluator was killed by SIGABRT" in run.err
    assert "The training goes on without it." in run.err
    assert "chief     | I go on\n" in run.out


def test_an_interrupted_chief_ends_as_it_likes() -> None:
    run = _Run(
        ps_0=_FOREVER,
        chief="try:\n"
        f"  {_INTERRUPT_LAUNCHER}\n  {_NAPS}\n"
        "except KeyboardInterrupt:\n"
        "  print('saved'); raise SystemExit(5)",
    )
    assert run.status == 5
    assert "chief | saved\n" in run.out
    assert "interrupted (SIGINT)" in run.err
    assert "ps 0 ended" not in run.err


def test_who_interrupts_the_job_does_not_wait_for_the_evaluator(
    fifo: str,
) -> None:
    run = _Run(
        evaluator_seconds=1000,
        evaluator=(
            "import signal, sys\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            f"open(sys.argv[1]).read()\n{_INTERRUPT_LAUNCHER}\n{_NAPS}",
            fifo,
        ),
        chief=(
            "import signal, sys\ntry:\n"
            f"  open(sys.argv[1], 'w').close()\n  {_NAPS}\n"
            "except KeyboardInterrupt:\n  sys.exit(5)",
            fifo,
        ),
    )
    assert run.status == 5
    assert "may go on" not in run.err


def test_an_interrupted_chief_that_does_not_care_is_dead_anyway() -> None:
    run = _Run(chief=f"{_INTERRUPT_LAUNCHER}\n{_NAPS}", is_quiet=True)
    assert run.status == 128 + signal.SIGINT
    # Nobody asks why it has ended, and its traceback is told once.
    assert "chief was killed by SIGINT (signal 2) after" in run.err
    assert (run.out + run.err).count("Traceback") == 1
    assert "Last lines" not in run.err
    assert "--tensorflow-logs" not in run.err


def test_a_chief_that_ignores_everything_is_killed() -> None:
    # The second signal to the launcher is for impatience: no time passes.
    run = _Run(
        chief="import os, signal\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "  signal.signal(number, lambda *_:"
        "    os.kill(os.getppid(), signal.SIGINT))\n"
        f"{_INTERRUPT_LAUNCHER}\n{_NAPS}",
        grace_seconds=1000,
    )
    assert run.status == 128 + signal.SIGKILL


def test_what_a_chief_leaves_behind_is_killed(fifo: str) -> None:
    # Proof is that nothing_left_behind does not find it.
    run = _Run(
        chief=(
            "import subprocess, sys\n"
            f"subprocess.Popen([sys.executable, '-c', {_FOREVER!r}])",
            fifo,
        )
    )
    assert run.status == 0


def test_a_progress_bar_arrives_as_one_line() -> None:
    run = _Run(
        chief="for i in range(3): print(f'\\r{i}/2', end='', flush=True)"
    )
    assert run.out == "chief | 2/2\n"


_NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are "
    "written to STDERR"
)


@pytest.mark.parametrize("is_quiet", [True, False])
def test_noise_is_left_out_where_it_is_asked(is_quiet: bool) -> None:
    run = _Run(
        is_quiet=is_quiet,
        chief=f"import sys; print({_NOISE!r})\n"
        f"print({_NOISE!r}, 'an error', sep='\\n', file=sys.stderr)",
    )
    assert (f"chief | {_NOISE}\n" in run.err) == (not is_quiet)
    assert "chief | an error\n" in run.err
    # TensorFlow makes none there: it is what somebody prints.
    assert run.out == f"chief | {_NOISE}\n"


def test_a_death_is_told_with_the_noise() -> None:
    run = _Run(
        is_quiet=True, chief=f"import sys\nsys.exit({_NOISE + chr(10)!r} 'bad')"
    )
    assert f"chief | {_NOISE}" not in run.err
    assert f"tfps  |   {_NOISE}\ntfps  |   bad\n" in run.err
    assert "add --tensorflow-logs" in run.err


def test_a_program_that_cannot_be_started_leaves_nobody_behind() -> None:
    plans = [
        ProcessPlan("ps 0", ("-c", _FOREVER), {}),
        ProcessPlan("chief", ("-c", "a null \0 byte"), {}),
    ]
    console = Console(["ps 0", "chief"], {}, io.StringIO(), io.StringIO())
    job = Job(plans, console, os.environ, **_ONE_SECOND)
    with pytest.raises(ValueError, match="null"):
        job.run()


def test_output_that_nobody_reads_ends_the_job() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as out:
        console = Console(["chief"], {}, out, io.StringIO())
        plans = [ProcessPlan("chief", ("-c", f"print(1)\n{_FOREVER}"), {})]
        job = Job(plans, console, os.environ, **_ONE_SECOND)
        with pytest.raises(BrokenPipeError):
            job.run()
        with pytest.raises(BrokenPipeError):
            out.close()


_SCALES = """
import os, sys
from tfps_plugin.launcher import control_socket

def scale(number):
    path = control_socket.running_jobs()[os.getppid()]
    assert "error" not in control_socket.ask(path, {"ps": number})

scale(2)
print("ps 1 runs", open(sys.argv[1]).read())
# It is wanted again before it ends.
scale(1)
scale(2)
open(sys.argv[2], "w").close()
print("ps 1 runs", open(sys.argv[1]).read())
scale(1)
"""


@pytest.mark.parametrize("returncode", [0, 3])
def test_a_ps_that_is_wanted_again_is_started_when_it_has_ended(
    fifo: str, tmp_path: pathlib.Path, returncode: int
) -> None:
    other = str(tmp_path / "other")
    os.mkfifo(other)
    # Runs until it is told to end, as by the chief that has removed it.
    program = (
        "import sys; print('begun', file=open(sys.argv[1], 'w'))\n"
        f"open(sys.argv[2]).read(); sys.exit({returncode})"
    )
    with control_socket.listening() as control:
        run = _Run(
            scaling=Scaling(
                control,
                [TaskRange(WORKER, 1, 1), TaskRange(PARAMETER_SERVER, 1, 2)],
                plan_cluster(range(4000, 4004), num_workers=1, num_ps=2),
                lambda _, task: ProcessPlan(
                    str(task), ("-c", program, fifo, other), {}
                ),
            ),
            chief=(_SCALES, fifo, other),
        )
    assert run.status == 0
    assert run.out.count("ps 1 runs begun") == 2
    assert run.err.count("started ps 1 (pid") == 2
    assert "2 parameter servers from now on" in run.err
    assert ("ps 1 ended with exit code 3" in run.err) == (returncode == 3)
    assert ("It is wanted, and started again" in run.err) == (returncode == 3)


def test_signal_handlers_are_as_before() -> None:
    before = [
        signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    ]
    _Run(chief="pass")
    assert before == [
        signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    ]
