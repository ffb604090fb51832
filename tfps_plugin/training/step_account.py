"""Counts the steps of an epoch: asked for, begun, done."""

import dataclasses
import threading
from collections.abc import Callable


@dataclasses.dataclass(eq=False)
class Claim:
    """Steps that one run of a closure has begun.

    Attributes:
        num_steps: How many.
    """

    num_steps: int
    is_open: bool = True


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
        # Reentrant: predicates of `wait_for` look at the counts.
        self._changed = threading.Condition(threading.RLock())
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
            self._changed.notify_all()
            return True

    def wake(self) -> None:
        """Has whoever waits look again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(
        self, predicate: Callable[[], bool], timeout_seconds: float
    ) -> bool:
        """Waits until something holds, looking at every change.

        Args:
            predicate: What is waited for; it may look at this account.
            timeout_seconds: How long to wait.

        Returns:
            Whether it holds.
        """
        with self._changed:
            return self._changed.wait_for(predicate, timeout_seconds)
