"""Handles that functions find on the parameter server that holds the variables.

If a function took handles as arguments, each call would carry all of them, and
in every iteration of a loop the worker would tell each ps that the iteration
begins. A function that takes them from a named area of the ps needs neither.

An area is a TensorFlow variable whose value is the handles of one shape, for
one function on one ps. The value is an Optional of them, which is taken apart
at no cost; a tensor of handles would be copied handle by handle.

Like any handle, they keep the memory of their variables. The area is deleted
after one of these, or the function, is gone: not at once, because Python may
collect them on any thread, but when the next variable is made or the next
function stages handles. The next chief frees the areas of a chief that has
crashed (`cluster.leftovers`).

Where an area is missing, a function fails at once, as it does where a variable
is missing. That happens on a ps that has just been started again. A staging
area of TensorFlow would make the function wait, and block a thread of the ps:
two such calls on a machine with two cores, and the ps computes nothing more.
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
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.chief import leftovers
from tfps_plugin.variables.chief import chief_reads

_logger = logging.getLogger("tfps_plugin.variables")

# An area, and the number of the content that is no longer needed; None: any.
_Abandoned = tuple["HandleArea", int | None]


class HandleAreas:
    """All handle areas of one connection; one of its parts.

    Attributes:
        abandoned: Areas to empty.
        last_change: A number that changes whenever a resource is made again.

    Threading: any thread; nothing here waits for a lock, so finalizers may
    add to `abandoned` while Python collects garbage.
    """

    def __init__(self) -> None:
        """Begins without any area."""
        self.abandoned: collections.deque[_Abandoned] = collections.deque()
        self.last_change = 0
        self._changes = itertools.count(1)

    def handles_have_changed(self) -> None:
        """Makes functions look up handles again: a resource was recreated."""
        self.last_change = next(self._changes)

    def free_abandoned(self) -> None:
        """Empties the areas that are no longer needed.

        Threading: any thread, but not while Python collects garbage.
        """
        while self.abandoned:
            try:
                area, content = self.abandoned.popleft()
            except IndexError:
                # Another thread has emptied it.
                return
            area.clear(content)


class Place(NamedTuple):
    """A kind of handles of a function.

    Attributes:
        device: Full name of the device of their ps.
        shape: Their shape; that of most is empty.
    """

    device: str
    shape: tuple[int, ...]


class HandleArea:
    """The handles of one function on one ps, all of one shape.

    Guarantees: an earlier content that is abandoned never clears a later one.
    Guarded by `_lock`: the content. `is_stale` may be set by Python's garbage
    collection, on any thread, which must not wait.

    Attributes:
        place: The ps, and the shape of a handle.
        num_handles: Number of handles.
        is_stale: Whether the area has no handles, or one of a variable that
            is gone.
    """

    def __init__(self, place: Place, num_handles: int) -> None:
        """Names the area, which is empty.

        Args:
            place: The ps, and the shape of a handle.
            num_handles: Number of handles.
        """
        self.place = place
        self.num_handles = num_handles
        self.is_stale = True
        # Unique across earlier chiefs, too.
        self._name = f"handles_{uuid.uuid4().hex}"
        self._connection = connection.present()
        self._areas = self._connection.part(HandleAreas)
        self._lock = threading.Lock()
        # The number of the content; 0 if there has been none.
        self._content = 0
        self._handles: list[weakref.ref[tf.Tensor]] = []

    def put(self, handles: Sequence[tf.Tensor]) -> None:
        """Replaces the handles.

        Args:
            handles: `num_handles` handles of this place.

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
            # A variable that is deleted meanwhile makes them stale again.
            self.is_stale = False
            self._handles = [weakref.ref(each, gone) for each in handles]
            try:
                self._put(handles)
            except BaseException:
                self.is_stale = True
                raise

    def _put(self, handles: Sequence[tf.Tensor]) -> None:
        with (
            tf.init_scope(),
            compat.clear_device(),
            tf.device(self.place.device),
        ):
            area = self._variable()
            value = tf.raw_ops.OptionalFromValue(components=list(handles))
            tf.raw_ops.AssignVariableOp(resource=area, value=value)
            is_there = tf.raw_ops.VarIsInitializedOp(resource=area)
        if not bool(is_there):
            raise tf.errors.UnavailableError(
                None, None, f"Handles did not arrive at {self.place.device}"
            )

    def clear(self, content: int | None = None) -> None:
        """Empties the area.

        Args:
            content: The number of the content to drop; a later one stays.
                None: any.
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
                    tf.device(self.place.device),
                ):
                    tf.raw_ops.DestroyResourceOp(resource=self._variable())
            except tf.errors.OpError as error:
                # This does not concern the caller, which makes a variable.
                _logger.log(
                    # A lost ps has lost its handles, too.
                    logging.DEBUG
                    if chief_reads.is_about_the_cluster(error)
                    else logging.WARNING,
                    "Memory of variables that are gone may not be free yet on "
                    "%s: %s",
                    self.place.device,
                    error,
                )

    def take(self) -> list[tf.Tensor]:
        """Returns the handles, in a function that is being traced.

        The function fails if there are none: call `put` before it.
        """
        with compat.clear_device(), tf.device(self.place.device):
            handles: list[tf.Tensor] = tf.raw_ops.OptionalGetValue(
                optional=tf.raw_ops.ReadVariableOp(
                    resource=self._variable(), dtype=tf.variant
                ),
                output_types=[tf.resource] * self.num_handles,
                output_shapes=[self.place.shape] * self.num_handles,
            )
        return handles

    def _variable(self) -> tf.Tensor:
        """Returns the handle of the area itself; the caller sets the device."""
        return tf.raw_ops.VarHandleOp(
            dtype=tf.variant,
            shape=[],
            container=leftovers.CONTAINER,
            shared_name=self._name,
        )

    def _gone(self, content: int, _: object) -> None:
        if content == self._content:
            self.is_stale = True
        self._areas.abandoned.append((self, content))


class StagedHandles:
    """All handles of one function, on the parameter servers that hold them.

    Guarded by `_lock`: `_as_of`.

    Attributes:
        areas: The areas by place.

    Threading: any thread.
    """

    def __init__(
        self, look_ups: Mapping[Place, Sequence[Callable[[], tf.Tensor]]]
    ) -> None:
        """Makes the areas; does not look up handles yet.

        Args:
            look_ups: By place, functions that return the current handles.
        """
        self.areas = {
            place: HandleArea(place, len(each))
            for place, each in look_ups.items()
        }
        self._look_ups = {
            place: tuple(each) for place, each in look_ups.items()
        }
        self._connection = connection.present()
        self._all_areas = self._connection.part(HandleAreas)
        self._lock = threading.Lock()
        self._as_of: int | None = None
        weakref.finalize(
            self,
            self._all_areas.abandoned.extend,
            [(area, None) for area in self.areas.values()],
        ).atexit = False

    def stage(self) -> None:
        """Stages the current handles; must precede each call of the function.

        Raises:
            VariableCreationError: If a variable no longer exists.
            StrategySupersededError: If their connection has ended.
            UnsupportedError: If a variable has moved to another ps.
        """
        self._connection.require()
        if self._are_there(self._all_areas.last_change):
            return
        self._all_areas.free_abandoned()
        with self._lock:
            # A handle that changes meanwhile is looked up for the next call.
            change = self._all_areas.last_change
            if self._are_there(change):
                return
            for place, area in self.areas.items():
                handles = [look_up() for look_up in self._look_ups[place]]
                _require_on(place.device, handles)
                area.put(handles)
            self._as_of = change

    def _are_there(self, change: int) -> bool:
        return self._as_of == change and not any(
            area.is_stale for area in self.areas.values()
        )


def _require_on(device: str, handles: Sequence[tf.Tensor]) -> None:
    """Refuses handles of variables that have moved to another device."""
    for handle in handles:
        if handle.device != device:
            raise errors.UnsupportedError(
                "A function was called whose variables are on other parameter "
                "servers now. Expected a function that was traced since they "
                f"have moved. Received: a variable on {handle.device}, which "
                f"was on {device}. Schedule the tf.function again, or call its "
                "get_concrete_function again."
            )
