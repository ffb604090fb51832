"""Signals that arrive at a socket, where a selector waits for them."""

import contextlib
import signal
import socket
from collections.abc import Iterable
from collections.abc import Iterator


@contextlib.contextmanager
def arriving_signals(
    requests: Iterable[signal.Signals],
) -> Iterator[socket.socket]:
    """Yields a socket that receives the numbers of arriving signals.

    The ends of children and new sizes of the terminal arrive, too.

    Args:
        requests: Signals that ask this process for something.

    Threading: for the main thread.
    """
    ours, interpreters = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        stack.enter_context(interpreters)
        ours.setblocking(False)
        interpreters.setblocking(False)
        previous = signal.set_wakeup_fd(interpreters.fileno())
        stack.callback(signal.set_wakeup_fd, previous)
        for number in (*requests, signal.SIGCHLD, signal.SIGWINCH):
            # After nohup we are to outlive the terminal.
            if number == signal.SIGHUP and (
                signal.getsignal(number) == signal.SIG_IGN
            ):
                continue
            # Only signals with a handler are written to the socket; the handler
            # itself does nothing.
            handler = signal.signal(number, lambda *_: None)
            stack.callback(signal.signal, number, handler)
        yield ours
