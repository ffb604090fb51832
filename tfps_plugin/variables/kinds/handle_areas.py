"""Handles that functions find on the parameter server that they belong to.

A function that is given handles as arguments has each call carry them all; and
in every round of a loop each ps hears from the worker that the round begins,
before it takes what it was given. A function that takes them from an area of
the ps, known to it by name, needs neither.

An area is one of TensorFlow's staging areas, of one function on one ps. What
is in it keeps the memory of its variables, as any handle does. It is emptied
when one of them is gone, or the function is: not at once, for Python may find
that out anywhere, but when the next variable is made, or the next function
puts handles somewhere. What a chief leaves that has crashed, the next one
frees (`cluster.leftovers`).
"""

import collections
import functools
import itertools
import logging
import threading
import uuid
import weakref
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.chief import leftovers
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.lookup import graph_checks

_logger = logging.getLogger(__name__)

# Each area has one set of handles.
_KEY = 0

# Areas, and which of their contents nobody needs any more; None: any.
_Abandoned = tuple["HandleArea", int | None]
_abandoned: collections.deque[_Abandoned] = collections.deque()
_changes = itertools.count(1)
# Another number whenever a handle has become another one.
_last_change = 0


def handles_have_changed() -> None:
    """Has functions look handles up anew: a resource was made again."""
    global _last_change
    _last_change = next(_changes)


def free_abandoned() -> None:
    """Empties the areas that nobody needs any more.

    Threading: any thread, but not while Python collects garbage.
    """
    while _abandoned:
        try:
            area, content = _abandoned.popleft()
        except IndexError:
            # Another thread has emptied it.
            return
        area.clear(content)


class HandleArea:
    """Where one ps keeps the handles of one function.

    Guarantees: nobody who needs a content later finds it cleared on account of
    an earlier one.
    Guarded by `_lock`: what is put there, and when. `is_stale` may be set by
    Python's garbage collection, on any thread, which must not wait.

    Attributes:
        device: Full name of the device of the ps.
        num_handles: How many there are.
        is_stale: Whether there are none, or one of a variable that is gone.
    """

    def __init__(self, device: str, num_handles: int) -> None:
        """Names it; there is nothing in it yet."""
        self.device = device
        self.num_handles = num_handles
        self.is_stale = True
        # Also another one than those of an earlier chief.
        self._name = f"handles_{uuid.uuid4().hex}"
        self._connection = connection.present()
        self._lock = threading.Lock()
        # A number for each content; 0: there has been none.
        self._content = 0
        self._handles: list[weakref.ref[tf.Tensor]] = []

    def put(self, handles: Sequence[tf.Tensor]) -> None:
        """Puts handles there, in the place of those before.

        Args:
            handles: Of this device, `num_handles`.

        Raises:
            StrategySupersededError: If its connection has ended.
        """
        self._connection.require()
        with self._lock:
            if not self.is_stale and all(
                reference() is handle
                for reference, handle in zip(
                    self._handles, handles, strict=True
                )
            ):
                return
            self._content += 1
            gone = functools.partial(self._gone, self._content)
            # What goes while these are put there makes them stale again.
            self.is_stale = False
            self._handles = [weakref.ref(each, gone) for each in handles]
            try:
                self._put(handles)
            except BaseException:
                self.is_stale = True
                raise

    def _put(self, handles: Sequence[tf.Tensor]) -> None:
        with tf.init_scope(), compat.clear_device():
            # A constant on another task would have this whole program wait.
            with tf.device(graph_checks.CPU):
                key = tf.constant(_KEY, tf.int64)
                indices = tf.range(self.num_handles)
            with tf.device(self.device):
                if self._content > 1:
                    tf.raw_ops.MapClear(**self._attributes())
                tf.raw_ops.MapStage(
                    key=key,
                    indices=indices,
                    values=list(handles),
                    **self._attributes(),
                )
                num_sets = tf.raw_ops.MapSize(**self._attributes())
        # Functions would wait for them for ever, if they were lost on the way.
        if not int(num_sets):
            raise tf.errors.UnavailableError(
                None, None, f"Handles did not arrive at {self.device}"
            )

    def clear(self, content: int | None = None) -> None:
        """Leaves nothing there.

        Args:
            content: Only if this is what is there; None: whatever it is.
        """
        with self._lock:
            if content not in (None, self._content) or not self._handles:
                return
            self.is_stale = True
            self._handles = []
            if self._connection.is_over:
                # Another cluster may have a task of that name.
                return
            try:
                with (
                    tf.init_scope(),
                    compat.clear_device(),
                    tf.device(self.device),
                ):
                    tf.raw_ops.MapClear(**self._attributes())
            except tf.errors.OpError as error:
                # Whoever makes a variable has nothing to do with this one.
                _logger.log(
                    # What a lost ps held is gone with it.
                    logging.DEBUG
                    if chief_reads.is_about_the_cluster(error)
                    else logging.WARNING,
                    "Memory of variables that are gone may not be free yet on "
                    "%s: %s",
                    self.device,
                    error,
                )

    def take(self) -> list[tf.Tensor]:
        """The handles, in a function that is being made.

        They are waited for: `put` comes before the first call.
        """
        with compat.clear_device(), tf.device(self.device):
            handles: list[tf.Tensor] = tf.raw_ops.MapPeek(
                key=tf.constant(_KEY, tf.int64),
                indices=tf.constant([*range(self.num_handles)], tf.int32),
                **self._attributes(),
            )
        return handles

    def _attributes(self) -> dict[str, object]:
        return {
            "dtypes": [tf.resource] * self.num_handles,
            "container": leftovers.CONTAINER,
            "shared_name": self._name,
        }

    def _gone(self, content: int, _: object) -> None:
        if content == self._content:
            self.is_stale = True
        _abandoned.append((self, content))


class StagedHandles:
    """All handles of one function, on the parameter servers they belong to.

    Guarded by `_lock`: `_as_of`.

    Attributes:
        areas: By device.

    Threading: any thread.
    """

    def __init__(
        self, look_ups: Mapping[str, Sequence[Callable[[], tf.Tensor]]]
    ) -> None:
        """Looks nothing up yet.

        Args:
            look_ups: By the device of a ps, what tells the handles of now.
        """
        self.areas = {
            device: HandleArea(device, len(each))
            for device, each in look_ups.items()
        }
        self._look_ups = {
            device: tuple(each) for device, each in look_ups.items()
        }
        self._connection = connection.present()
        self._lock = threading.Lock()
        self._as_of: int | None = None
        weakref.finalize(
            self,
            _abandoned.extend,
            [(area, None) for area in self.areas.values()],
        ).atexit = False

    def stage(self) -> None:
        """Sees to it that the handles of now are there; before each call.

        Raises:
            VariableCreationError: If a variable does not exist any more.
            StrategySupersededError: If their connection has ended.
        """
        self._connection.require()
        if self._are_there(_last_change):
            return
        free_abandoned()
        with self._lock:
            # One that changes meanwhile is looked up again for the next call.
            change = _last_change
            if self._are_there(change):
                return
            for device, area in self.areas.items():
                area.put([look_up() for look_up in self._look_ups[device]])
            self._as_of = change

    def _are_there(self, change: int) -> bool:
        return self._as_of == change and not any(
            area.is_stale for area in self.areas.values()
        )
