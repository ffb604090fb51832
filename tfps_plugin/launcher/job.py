"""One job on this machine, from its first process to its last."""

import contextlib
import functools
import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from collections.abc import Sequence

from tfps_plugin.cluster.output import console as console_lib
from tfps_plugin.cluster.output.console import Console
from tfps_plugin.cluster.serving import job_pipe
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.launcher.arriving_signals import arriving_signals
from tfps_plugin.launcher.child_process import ChildProcess
from tfps_plugin.launcher.child_process import Output
from tfps_plugin.launcher.endings import death_report
from tfps_plugin.launcher.endings import describe
from tfps_plugin.launcher.endings import exit_status
from tfps_plugin.launcher.process_plan import PROGRAMS
from tfps_plugin.launcher.process_plan import ProcessPlan
from tfps_plugin.launcher.restarts import Restarts
from tfps_plugin.launcher.scaling import Scaling
from tfps_plugin.launcher.stop_sequence import Reason
from tfps_plugin.launcher.stop_sequence import StopSequence
from tfps_plugin.launcher.stop_sequence import plan_steps
from tfps_plugin.launcher.terminal_relay import TerminalRelay

_REASONS = {
    signal.SIGINT: Reason.INTERRUPTED,
    signal.SIGTERM: Reason.TERMINATED,
    signal.SIGHUP: Reason.TERMINATED,
}

# The interval at which a progress bar is shown if it cannot be redrawn.
_GLIMPSE_SECONDS = 10.0

_WHERE_IS_MORE = "To see all that TensorFlow logs, add --tensorflow-logs."

_STREAMS = (console_lib.STDOUT, console_lib.STDERR)


class Job:
    """Runs a job's processes until the chief has ended.

    Args:
        plans: The processes, one of them the chief.
        console: The console that shows their lines.
        environ: The environment of all of them.
        grace_seconds: The time in which the user's programs may end after
            Ctrl-C.
        evaluator_seconds: The time for which the evaluator may go on after the
            chief has ended, for the last checkpoint.
        max_restarts: The number of restarts of each task that fails.
        scaling: Changes the numbers of workers and parameter servers; None:
            they stay.
        is_quiet: Whether to leave out the known noise of TensorFlow. The last
            lines of a task that dies are quoted with it all the same.

    Threading: for use by the main thread, the only one that gets signals.
    """

    def __init__(
        self,
        plans: Sequence[ProcessPlan],
        console: Console,
        environ: Mapping[str, str],
        *,
        grace_seconds: float,
        evaluator_seconds: float,
        max_restarts: int = 0,
        scaling: Scaling | None = None,
        is_quiet: bool = False,
    ) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._scaling = scaling
        self._console = console
        self._environ = environ
        self._grace_seconds = grace_seconds
        self._evaluator_seconds = evaluator_seconds
        self._is_quiet = is_quiet
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, ChildProcess] = {}
        self._restarts = Restarts(max_restarts)
        self._chief_returncode = 0
        self._stop: StopSequence | None = None
        # The first one; the chief ends for any other one, too.
        self._reason: Reason | None = None
        # The tasks that were sent a signal: their end is no news.
        self._told: set[str] = set()
        # Closed when the chief has ended, so that the evaluator knows.
        self._evaluators_pipe = contextlib.ExitStack()
        # Only if the chief's standard error is a terminal.
        self._relay: TerminalRelay | None = None
        self._next_glimpse = time.monotonic() + _GLIMPSE_SECONDS

    def run(self) -> int:
        """Runs the job to its end.

        Returns:
            The exit code for the launcher: the chief's.

        Raises:
            BrokenPipeError: If our output is closed. No process is left then
                either.
        """
        with (
            self._selector,
            self._evaluators_pipe,
            arriving_signals(_REASONS) as wake_up,
        ):
            self._selector.register(wake_up, selectors.EVENT_READ)
            if self._scaling is not None:
                self._selector.register(
                    self._scaling.control, selectors.EVENT_READ, self._scale
                )
            try:
                for plan in self._plans.values():
                    self._start(plan)
                self._console.say(
                    "started "
                    + ", ".join(
                        f"{child.name} (pid {child.pid})"
                        for child in self._running.values()
                    )
                )
                while not self._is_over() and not self._has_given_up():
                    self._wait(wake_up)
                    self._bury_the_dead()
                    self._start_again()
                    self._start_wanted()
                    self._take_next_step()
            finally:
                for child in self._running.values():
                    child.discard()
                if self._relay is not None:
                    self._relay.close()
        return exit_status(self._chief_returncode)

    def _is_over(self) -> bool:
        return not self._running and not self._restarts.waiting

    def _start_again(self) -> None:
        due = self._restarts.take_due(time.monotonic())
        for plan in self._plans.values():
            # It runs already if it was wanted again meanwhile.
            if plan.name in due and plan.name not in self._running:
                self._start(plan)
                child = self._running[plan.name]
                self._console.say(
                    f"started {plan.name} again (pid {child.pid})"
                )

    def _scale(self) -> None:
        """Takes a request for other numbers of tasks."""
        if self._scaling is not None and (text := self._scaling.take_request()):
            self._console.say(text)

    def _start_wanted(self) -> None:
        """Starts tasks that are wanted since the job has begun."""
        if self._scaling is None or self._stop is not None:
            return
        for plan in self._scaling.take_due(self._running.keys()):
            self._plans[plan.name] = plan
            self._start(plan)
            self._console.say(
                f"started {plan.name} (pid {self._running[plan.name].pid})"
            )

    def _start(self, plan: ProcessPlan) -> None:
        console = self._console
        passed_through = [
            stream
            for stream in _STREAMS
            if plan.name == CHIEF and console.is_terminal(stream)
        ]
        if self._is_quiet and console_lib.STDERR in passed_through:
            terminal = console.descriptor(console_lib.STDERR)
            self._relay = TerminalRelay(terminal)
            self._selector.register(
                self._relay, selectors.EVENT_READ, self._forward
            )
            errors_to = self._relay.programs_end
        else:
            errors_to = None
        with contextlib.ExitStack() as its_end:
            environ, pipes = self._environ, []
            if plan.name == EVALUATOR:
                pipe, ours = os.pipe()
                its_end.callback(os.close, pipe)
                self._evaluators_pipe.callback(os.close, ours)
                environ = {**environ, job_pipe.VARIABLE: str(pipe)}
                pipes.append(pipe)
            child = ChildProcess(
                plan,
                environ,
                passed_through=passed_through,
                errors_to=errors_to,
                reads_stdin=plan.name == CHIEF,
                pass_descriptors=pipes,
                coloured=[
                    each for each in _STREAMS if console.is_coloured(each)
                ],
            )
        if self._relay is not None:
            self._relay.release_programs_end()
        self._running[child.name] = child
        for output in child.outputs:
            self._selector.register(
                output,
                selectors.EVENT_READ,
                functools.partial(self._pass_on, child, output),
            )

    def _wait(self, wake_up: socket.socket) -> None:
        """Waits for output, a signal, a death or the next deadline."""
        until = self._next_glimpse
        if self._stop is not None:
            until = min(until, self._stop.deadline)
        if self._restarts.next_due is not None:
            until = min(until, self._restarts.next_due)
        if self._relay is not None:
            until = min(until, self._relay.deadline)
        timeout_seconds = max(0.0, until - time.monotonic())
        for key, _ in self._selector.select(timeout_seconds):
            if key.fileobj is wake_up:
                for number in wake_up.recv(4096):
                    self._on_signal(signal.Signals(number))
            else:
                key.data()
        if self._relay is not None and time.monotonic() >= self._relay.deadline:
            self._forward()
        if time.monotonic() >= self._next_glimpse:
            self._next_glimpse = time.monotonic() + _GLIMPSE_SECONDS
            for child in self._running.values():
                for output in child.outputs:
                    lines = output.glimpse()
                    self._console.show(child.name, output.stream, lines)

    def _pass_on(
        self, child: ChildProcess, output: Output, *, is_last: bool = False
    ) -> None:
        descriptor = output.fileno()
        lines = output.drain() if is_last else output.read()
        if not output.is_open:
            self._selector.unregister(descriptor)
        child.remember(lines)
        if self._is_quiet and output.stream == console_lib.STDERR:
            lines = output.noise_filter.feed(lines)
        self._console.show(child.name, output.stream, lines)

    def _forward(self, *, is_last: bool = False) -> None:
        """Passes on the chief's standard error, if it is relayed."""
        relay = self._relay
        if relay is None or not relay.is_open:
            return
        descriptor = relay.fileno()
        data = relay.drain() if is_last else relay.read()
        if not relay.is_open:
            self._selector.unregister(descriptor)
        self._console.forward(console_lib.STDERR, data)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGWINCH and self._relay is not None:
            self._relay.resize()
        if number not in _REASONS:
            return  # SIGCHLD has done its work: it woke us up.
        if self._stop is not None:
            self._stop.hurry()
            return
        reason = _REASONS[number]
        self._console.say(
            f"{reason.value} ({number.name}): the chief has "
            f"{self._grace_seconds:g} s to end; once more to hurry."
        )
        self._begin_to_stop(reason)

    def _begin_to_stop(self, reason: Reason) -> None:
        self._restarts.cancel()
        self._reason = self._reason or reason
        self._stop = StopSequence(
            plan_steps(
                reason,
                grace_seconds=self._grace_seconds,
                # A request to end the job is one to the evaluator, too.
                evaluator_seconds=0.0
                if self._stop
                else self._evaluator_seconds,
            ),
            PROGRAMS.__contains__,
        )

    def _take_next_step(self) -> None:
        if self._stop is None:
            return
        step = self._stop.advance(time.monotonic(), tuple(self._running))
        if step is None:
            return
        what, names = step
        if what.signal is None:
            self._console.say(
                f"{', '.join(names)} may go on for "
                f"{what.patience_seconds:g} s, to evaluate the last "
                "checkpoint; Ctrl-C ends it."
            )
            return
        self._told.update(names)
        for name in names:
            self._running[name].send(what.signal)

    def _has_given_up(self) -> bool:
        if self._stop is None or not self._stop.has_failed(time.monotonic()):
            return False
        self._console.say(
            "these do not end even after SIGKILL: "
            + ", ".join(
                f"{child.name} (pid {child.pid})"
                for child in self._running.values()
            ),
            alarming=True,
        )
        return True

    def _bury_the_dead(self) -> None:
        for child in list(self._running.values()):
            if not child.has_ended():
                continue
            elapsed_seconds = child.elapsed_seconds
            returncode = child.bury()
            for output in child.outputs:
                if output.is_open:
                    self._pass_on(child, output, is_last=True)
            if child.name == CHIEF:
                self._forward(is_last=True)
            del self._running[child.name]
            self._on_death(child, returncode, elapsed_seconds)

    def _on_death(
        self, child: ChildProcess, returncode: int, elapsed_seconds: float
    ) -> None:
        if child.name == CHIEF:
            self._chief_returncode = returncode
        elif child.name in self._told or (
            # Ctrl-C reaches all processes of a terminal.
            self._reason not in (None, Reason.CHIEF_ENDED)
            and child.name != EVALUATOR
        ):
            return
        again = None
        if self._stop is None and self._scaling is not None:
            again = self._scaling.ended(child.name, returncode)
        if self._stop is None and again is None:
            again = self._restarts.failed(
                child.name, returncode, time.monotonic()
            )
        if returncode != 0 and child.name not in self._told:
            consequence = again or _consequence(
                child.name, has_chief_ended=self._stop is not None
            )
            report = death_report(
                child.name,
                returncode,
                elapsed_seconds=elapsed_seconds,
                last_lines=child.last_lines,
                consequence=consequence,
            )
            if self._is_quiet:
                report.append(_WHERE_IS_MORE)
            self._console.say(*report, alarming=True)
        elif child.name == CHIEF:
            self._console.say(
                f"{CHIEF} {describe(returncode)} after {elapsed_seconds:.1f} s."
            )
        if child.name == CHIEF and again is None:
            self._evaluators_pipe.close()
            self._begin_to_stop(Reason.CHIEF_ENDED)


def _consequence(name: str, *, has_chief_ended: bool) -> str:
    """Returns what the death of a process means for the job."""
    if name == CHIEF:
        return "The job ends with it."
    if has_chief_ended:
        return "The training had ended before."
    if name == EVALUATOR:
        return "The training goes on without it."
    return (
        "It is not started again; the job goes on for as long as the chief "
        "does."
    )
