"""A pseudo-terminal between a program's standard error and the terminal."""

import contextlib
import errno
import os
import termios
import time
import tty

from tfps_plugin.cluster.output.tensorflow_noise import NoiseFilter

_CHUNK_BYTES = 64 * 1024

# Bytes that look like the beginning of noise are held back for this time. A
# logger writes whole lines; a person does not notice the wait.
_HOLD_SECONDS = 0.1


class TerminalRelay:
    """Passes on what a program writes to a terminal, without the noise.

    The program still finds a terminal, as wide as the real one, because
    libraries draw progress bars and colors only on a terminal and not on a
    pipe. Bytes arrive as they were written; the real terminal handles line
    ends.

    Nothing comes back through the relay. A program that reads the keyboard from
    its standard error, as some pagers do, gets no key.

    Args:
        terminal: File descriptor of the real terminal.

    Attributes:
        deadline: The time at which to call `read` even if nothing has arrived,
            in seconds of `time.monotonic`.

    Threading: for use by one thread.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._filter = NoiseFilter()
        self.deadline = float("inf")
        self._ours, self._programs = os.openpty()
        tty.setraw(self._programs)
        os.set_blocking(self._ours, False)
        self.resize()

    def fileno(self) -> int:
        """The file descriptor to wait on."""
        return self._ours

    @property
    def is_open(self) -> bool:
        """True while more may come."""
        return self._ours >= 0

    @property
    def programs_end(self) -> int:
        """The file descriptor that the program gets."""
        return self._programs

    def release_programs_end(self) -> None:
        """Closes our copy of the program's end, once the program has it."""
        if self._programs >= 0:
            os.close(self._programs)
            self._programs = -1

    def resize(self) -> None:
        """Adopts the size of the real terminal."""
        if self.is_open:
            # A terminal that has just been closed has no size.
            with contextlib.suppress(termios.error):
                size = termios.tcgetwinsize(self._terminal)
                termios.tcsetwinsize(self._ours, size)

    def read(self) -> bytes:
        """Returns what to show now; closes the relay at the stream's end."""
        data = self._receive()
        if data is None:
            if time.monotonic() < self.deadline:
                return b""
            self.deadline = float("inf")
            return self._filter.release()
        return self._pass_on(data) if data else self.close()

    def drain(self) -> bytes:
        """Closes the relay; returns what was not read yet."""
        shown = b""
        while self.is_open:
            # None: another process holds it open but writes nothing.
            data = self._receive()
            shown += self._pass_on(data) if data else self.close()
        return shown

    def close(self) -> bytes:
        """Closes both ends; returns the bytes that were held back."""
        self.release_programs_end()
        if self.is_open:
            os.close(self._ours)
            self._ours = -1
        self.deadline = float("inf")
        return self._filter.release()

    def _receive(self) -> bytes | None:
        """Returns what has arrived: b"" at the end, None if nothing has."""
        try:
            return os.read(self._ours, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            # Linux reports so the end of a terminal that no process holds.
            if error.errno != errno.EIO:
                raise
            return b""

    def _pass_on(self, data: bytes) -> bytes:
        shown = self._filter.feed(data)
        # More bytes do not extend the time of those that are held back.
        if not self._filter.is_holding:
            self.deadline = float("inf")
        elif shown or self.deadline == float("inf"):
            self.deadline = time.monotonic() + _HOLD_SECONDS
        return shown
