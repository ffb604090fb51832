"""One task whose every line is written as JSON.

A process cannot format what native code writes to its standard error, so the
task is a child of this process. Nothing that it writes is lost, however it
ends.
"""

import os
import selectors
import signal
from collections.abc import Mapping

from tfps_plugin.cluster.output import tensorflow_noise
from tfps_plugin.cluster.output.console import STDERR
from tfps_plugin.cluster.output.console import Console
from tfps_plugin.launcher.arriving_signals import arriving_signals
from tfps_plugin.launcher.child_process import ChildProcess
from tfps_plugin.launcher.child_process import Output
from tfps_plugin.launcher.endings import exit_status
from tfps_plugin.launcher.process_plan import ProcessPlan

# Signals that are meant for the task.
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(plan: ProcessPlan, environ: Mapping[str, str]) -> int:
    """Runs a task to its end.

    Signals that ask this process to end are passed on to the task.

    Args:
        plan: The process of the task.
        environ: Its environment. Its log level of TensorFlow decides whether
            the known noise is left out.

    Returns:
        The exit code of the task, as a shell gives it.

    Raises:
        BrokenPipeError: If our output is closed. The task is ended then.

    Threading: for the main thread.
    """
    console = Console([plan.name], os.environ, as_json=True)
    is_quiet = tensorflow_noise.is_quiet(
        environ.get(tensorflow_noise.LOG_LEVEL, "")
    )

    def show(output: Output, lines: list[str]) -> None:
        if is_quiet and output.stream == STDERR:
            lines = output.noise_filter.feed(lines)
        console.show(child.name, output.stream, lines)

    with (
        selectors.DefaultSelector() as selector,
        arriving_signals(_FORWARDED) as wake_up,
    ):
        child = ChildProcess(plan, environ)
        try:
            selector.register(wake_up, selectors.EVENT_READ)
            for output in child.outputs:
                selector.register(output, selectors.EVENT_READ)
            while not child.has_ended():
                for key, _ in selector.select():
                    source = key.fileobj
                    if isinstance(source, Output):
                        show(source, source.read())
                        if not source.is_open:
                            selector.unregister(key.fd)
                    else:
                        for number in wake_up.recv(4096):
                            if number in _FORWARDED:
                                child.send(signal.Signals(number))
            returncode = child.bury()
            for output in child.outputs:
                if output.is_open:
                    show(output, output.drain())
        finally:
            child.discard()
    return exit_status(returncode)
