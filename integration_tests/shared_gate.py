"""A gate inside of a training step, at which tests hold up a worker."""

import os
import pathlib
import threading
from collections.abc import Callable

import tensorflow as tf

_JOIN_SECONDS = 120.0


class Gate:
    """Holds up one step until it is opened; two named pipes.

    The worker that comes to the gate writes to one pipe, which tells the test,
    and then to the other, which has no reader until the gate is opened.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Makes a closed gate.

        Args:
            folder: An existing folder for the pipes.
        """
        self._bell = folder / "bell"
        self._bar = folder / "bar"
        for pipe in (self._bell, self._bar):
            os.mkfifo(pipe)
        # Once it is there, no other step is held up.
        self._mark = folder / "mark"
        self._open: list[int] = []
        self._action: threading.Thread | None = None
        self._error: BaseException | None = None
        self._has_acted = False

    def passing(self, is_held: tf.Tensor) -> tf.Operation:
        """Returns an operation that ends when the step may go on.

        Args:
            is_held: Whether the step has to pass the gate.
        """
        mark = tf.where(is_held, str(self._mark), os.devnull)
        # Nothing matches the name of a file that is not there.
        is_held &= tf.size(tf.io.matching_files(mark)) == 0
        bell, bar = (
            tf.where(is_held, str(pipe), os.devnull)
            for pipe in (self._bell, self._bar)
        )
        with tf.control_dependencies([tf.io.write_file(bell, "reached")]):
            return tf.io.write_file(bar, "passed")

    def once_reached(self, action: Callable[[], None]) -> None:
        """Runs an action on another thread when a step is held up.

        Args:
            action: Called without arguments.
        """

        def run() -> None:
            # This waits for the writer.
            with self._bell.open() as bell:
                bell.read()
            if self._open:
                return
            try:
                action()
                self._has_acted = True
            except BaseException as error:
                self._error = error

        self._action = threading.Thread(target=run, daemon=True)
        self._action.start()

    def assert_acted(self) -> None:
        """Checks that a step was held up, and the action has succeeded."""
        assert self._action is not None
        if self._has_acted or self._error:
            self._action.join(_JOIN_SECONDS)
        if self._error is not None:
            raise self._error
        assert self._has_acted, "No step has come to the gate."

    def let_others_pass(self) -> None:
        """Holds up no step that comes from now on.

        One that is held up already stays so until the gate is opened. Call it
        in the action of `once_reached`.
        """
        self._mark.touch()

    def open(self) -> None:
        """Lets every step go on, from now on."""
        # Linux opens a pipe for both without waiting for the other side.
        self._open += [
            os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
            for pipe in (self._bell, self._bar)
        ]

    def close(self) -> None:
        """Ends the thread of the action, and frees the pipes."""
        self.open()
        for descriptor in self._open:
            os.close(descriptor)
        if self._action is not None:
            self._action.join(_JOIN_SECONDS)
