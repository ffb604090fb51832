"""Counts the steps of an epoch: asked for, begun, done."""

import dataclasses
import threading


@dataclasses.dataclass(eq=False)
class Claim:
    """Steps that one run of a closure has begun.

    Attributes:
        num_steps: How many.
        is_open: Whether they were not settled yet.
        was_begun: Whether a run of the closure has begun with them.
    """

    num_steps: int
    is_open: bool = True
    was_begun: bool = False


class StepAccount:
    """How many steps Keras has asked for, and what became of them.

    The thread that runs `fit` asks for steps and waits; closures claim some of
    them when they run, and settle when they know how many they did. Steps
    that a closure did not do, because its input came to an end or it failed,
    can be claimed by others.

    Guarantees: no step is done twice by claims that settle. Guarded by
    `_changed`: all counts.
    """

    def __init__(self) -> None:
        """Begins an epoch in which nothing was asked for."""
        self._changed = threading.Condition()
        self._num_changes = 0
        self._asked = 0
        self._claimed = 0
        self._done = 0

    @property
    def asked(self) -> int:
        """Steps that were asked for."""
        return self._asked

    @property
    def done(self) -> int:
        """Steps that ran to their end."""
        return self._done

    @property
    def unclaimed(self) -> int:
        """Steps that were asked for and that no closure has begun."""
        with self._changed:
            return self._asked - self._claimed

    @property
    def claimed(self) -> int:
        """Steps that closures have begun, whatever became of them."""
        with self._changed:
            return self._claimed

    @property
    def in_progress(self) -> int:
        """Steps that closures have begun and not settled."""
        with self._changed:
            return self._claimed - self._done

    def ask(self, num_steps: int) -> None:
        """Asks for more steps."""
        with self._changed:
            self._asked += num_steps

    def claim(self, most: int) -> Claim:
        """Begins some of the steps that were asked for.

        Args:
            most: How many at most.

        Returns:
            What has to be settled; perhaps of no step.
        """
        with self._changed:
            num_steps = min(most, self._asked - self._claimed)
            self._claimed += num_steps
            return Claim(num_steps)

    def settle(self, claim: Claim, num_done: int) -> bool:
        """Says how many of the claimed steps were done.

        Args:
            claim: From `claim`.
            num_done: How many; the others can be claimed again.

        Returns:
            Whether it counts. It does not, if the claim was settled before:
            a run that was taken for lost may yet come to its end.
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
        """Takes back what was asked for and no closure has begun.

        Returns:
            How many steps that are.
        """
        with self._changed:
            num_steps = self._asked - self._claimed
            self._asked = self._claimed
        self.wake()
        return num_steps

    @property
    def num_changes(self) -> int:
        """How often the counts changed, or somebody woke those who wait."""
        return self._num_changes

    def wake(self) -> None:
        """Has whoever waits look again."""
        with self._changed:
            self._num_changes += 1
            self._changed.notify_all()

    def wait_for_change(self, num_changes: int, timeout_seconds: float) -> None:
        """Waits until there were more changes than that.

        Args:
            num_changes: What `num_changes` was before the caller looked at
                whatever it waits for.
            timeout_seconds: How long to wait at most.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._num_changes != num_changes, timeout_seconds
            )
