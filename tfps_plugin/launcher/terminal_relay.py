"""Between a program's errors and the terminal: a terminal of its own."""

import contextlib
import errno
import os
import termios
import time
import tty

from tfps_plugin.cluster.output.tensorflow_noise import NoiseFilter

_CHUNK_BYTES = 64 * 1024

# How long bytes that look like the beginning of noise are held back. A logger
# writes its lines whole; a person does not notice the wait.
_HOLD_SECONDS = 0.1


class TerminalRelay:
    """Passes on what a program writes to a terminal, but for the noise.

    The program still finds a terminal, as wide as the real one: what draws
    progress bars or colours looks for that. A pipe would tell it otherwise.
    Bytes arrive as they were written; line ends are left to the real terminal.

    Nothing comes back through it. Who reads the keyboard from its standard
    error, as pagers do that find no other, gets no key.

    Args:
        terminal: File descriptor of the real terminal.

    Attributes:
        deadline: When `read` is to be called even if nothing has arrived, in
            seconds of `time.monotonic`.

    Threading: of one thread.
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
        """Whether more may come."""
        return self._ours >= 0

    @property
    def programs_end(self) -> int:
        """The file descriptor that the program gets."""
        return self._programs

    def release_programs_end(self) -> None:
        """Leaves the program's end to the program, once it has it."""
        if self._programs >= 0:
            os.close(self._programs)
            self._programs = -1

    def resize(self) -> None:
        """Takes on the size of the real terminal."""
        if self.is_open:
            # A terminal that has just been closed has no size.
            with contextlib.suppress(termios.error):
                size = termios.tcgetwinsize(self._terminal)
                termios.tcsetwinsize(self._ours, size)

    def read(self) -> bytes:
        """What is to be shown now; closes the relay at the stream's end."""
        data = self._receive()
        if data is None:
            if time.monotonic() < self.deadline:
                return b""
            self.deadline = float("inf")
            return self._filter.release()
        return self._pass_on(data) if data else self.close()

    def drain(self) -> bytes:
        """What is left once nobody writes any more; closes the relay."""
        shown = b""
        while self.is_open:
            # None: somebody holds it open, and has nothing to say.
            data = self._receive()
            shown += self._pass_on(data) if data else self.close()
        return shown

    def close(self) -> bytes:
        """Closes both ends; returns what was held back."""
        self.release_programs_end()
        if self.is_open:
            os.close(self._ours)
            self._ours = -1
        self.deadline = float("inf")
        return self._filter.release()

    def _receive(self) -> bytes | None:
        """What has arrived; nothing at the end, None if there is nothing."""
        try:
            return os.read(self._ours, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            # Linux has this for the end of a terminal that nobody holds.
            if error.errno != errno.EIO:
                raise
            return b""

    def _pass_on(self, data: bytes) -> bytes:
        shown = self._filter.feed(data)
        # While it holds something, more of it does not buy more time.
        if not self._filter.is_holding:
            self.deadline = float("inf")
        elif shown or self.deadline == float("inf"):
            self.deadline = time.monotonic() + _HOLD_SECONDS
        return shown
