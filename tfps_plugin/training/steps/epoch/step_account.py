"""Counts the steps of an epoch: requested, started, completed."""

import dataclasses
import threading


@dataclasses.dataclass(eq=False)
class Claim:
    """Steps that one run of a closure has started.

    Attributes:
        num_steps: Number of steps.
        is_open: Whether they are not settled yet.
        was_begun: Whether a run of the closure has started on them, and they
            count as begun again if another one does.
    """

    num_steps: int
    is_open: bool = True
    was_begun: bool = False


class StepAccount:
    """Counts of the steps that Keras has requested, and of their states.

    The thread that runs `fit` requests steps and waits. Closures claim some of
    them when they run, and settle when they know how many they did. Others
    can claim steps that a closure did not do because its input ended or it
    failed.

    Guarantees: claims that settle never do a step twice. Guarded by
    `_changed`: all counts.
    """

    def __init__(self) -> None:
        """Begins an epoch without requested steps."""
        self._changed = threading.Condition()
        self._num_changes = 0
        self._asked = 0
        self._claimed = 0
        self._done = 0

    @property
    def asked(self) -> int:
        """Number of requested steps."""
        return self._asked

    @property
    def done(self) -> int:
        """Number of completed steps."""
        return self._done

    @property
    def unclaimed(self) -> int:
        """Number of requested steps that no closure has started."""
        with self._changed:
            return self._asked - self._claimed

    @property
    def claimed(self) -> int:
        """Number of steps that closures have started, completed or not."""
        with self._changed:
            return self._claimed

    def ask(self, num_steps: int) -> None:
        """Requests more steps."""
        with self._changed:
            self._asked += num_steps

    def claim(self, most: int) -> Claim:
        """Claims some of the requested steps.

        Returns:
            A claim to be settled; it may be empty.
        """
        with self._changed:
            num_steps = min(most, self._asked - self._claimed)
            self._claimed += num_steps
            return Claim(num_steps)

    def settle(self, claim: Claim, num_done: int) -> bool:
        """Records how many of the claimed steps were done.

        Args:
            claim: A result of `claim`.
            num_done: Number of done steps; the others can be claimed again.

        Returns:
            Whether it counts. It does not if the claim was settled before: a
            run that was presumed lost may still end.
        """
        with self._changed:
            if not claim.is_open:
                return False
            claim.is_open = False
            self._claimed -= claim.num_steps - num_done
            self._done += num_done
        self.wake()
        return True

    def withdraw_unclaimed(self) -> int:
        """Withdraws the requested steps that no closure has started.

        Returns:
            The number of these steps.
        """
        with self._changed:
            num_steps = self._asked - self._claimed
            self._asked = self._claimed
        self.wake()
        return num_steps

    @property
    def num_changes(self) -> int:
        """Number of changes to the counts and of calls of `wake`."""
        return self._num_changes

    def wake(self) -> None:
        """Lets waiting threads check again."""
        with self._changed:
            self._num_changes += 1
            self._changed.notify_all()

    def wait_for_change(self, num_changes: int, timeout_seconds: float) -> None:
        """Waits for another change.

        Args:
            num_changes: Value of `num_changes` before the caller checked
                whatever it waits for.
            timeout_seconds: Longest time to wait.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._num_changes != num_changes, timeout_seconds
            )
