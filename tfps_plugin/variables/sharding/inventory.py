"""Variables of each parameter server, listed so they can be made again."""

import threading
import weakref
from collections.abc import Iterable

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.sharding import holdings
from tfps_plugin.variables.updates.update_lock import UpdateLocks

# From this number on, deleted variables are removed from the list at times.
_PRUNE_FROM = 256


class Inventory:
    """The variables of all parameter servers, and their locks.

    It keeps no variable alive: variables that the program drops are not listed.

    Threading: safe from several threads. Guarded by `_lock`: the lists.
    """

    def __init__(self, locks: UpdateLocks) -> None:
        """Begins with nothing.

        Args:
            locks: The locks of the same parameter servers.
        """
        self._locks = locks
        self._lock = threading.Lock()
        self._variables: list[weakref.ref[RemoteVariable]] = []
        self._num_to_prune = _PRUNE_FROM
        self._tallies: list[weakref.ref[RemoteVariable]] = []

    def new_tally(
        self, device: str, shape: tf.TensorShape, name: str
    ) -> RemoteVariable:
        """Makes whole numbers that begin at zero, and do so after a loss.

        They are no part of the model: no checkpoint has them, and they count
        for no placement.

        Args:
            device: Full device name of the ps.
            shape: Full static shape.
            name: Name for messages.

        Returns:
            A variable of int64, in no `Inventory.on`.
        """
        with tf.init_scope(), compat.clear_device():
            tally = RemoteVariable(
                device, shape, tf.int64, name, trainable=False
            )
            _clear(tally)
        with self._lock:
            living = [r for r in self._tallies if r() is not None]
            self._tallies = [*living, weakref.ref(tally)]
        return tally

    def add(self, variable: RemoteVariable) -> None:
        """Lists a variable; each shard counts as a variable."""
        with self._lock:
            self._variables.append(weakref.ref(variable))
            if len(self._variables) >= self._num_to_prune:
                self._variables = [
                    r for r in self._variables if r() is not None
                ]
                self._num_to_prune = max(_PRUNE_FROM, 2 * len(self._variables))

    def replace(
        self, old: Iterable[RemoteVariable], new: Iterable[RemoteVariable]
    ) -> None:
        """Lists shards in the place of others; lists none twice.

        Args:
            old: Shards that are listed, and are gone.
            new: Variables and shards; they may be listed.
        """
        gone = {id(each) for each in old}
        with self._lock:
            kept = [
                each
                for each in self._variables
                if (variable := each()) is not None and id(variable) not in gone
            ]
            known = {id(each()) for each in (*kept, *self._tallies)}
            self._variables = [
                *kept,
                *(weakref.ref(v) for v in new if id(v) not in known),
            ]

    def tallies_on(self, devices: Iterable[str]) -> list[RemoteVariable]:
        """Returns the numbers of `new_tally` on some parameter servers.

        Args:
            devices: Full names of their devices.
        """
        wanted = set(devices)
        with self._lock:
            tallies = [reference() for reference in self._tallies]
        return [t for t in tallies if t is not None and t.device in wanted]

    def on(self, devices: Iterable[str]) -> list[RemoteVariable]:
        """Returns the variables on some parameter servers, oldest first.

        Args:
            devices: Full names of their devices.
        """
        wanted = set(devices)
        with self._lock:
            references = list(self._variables)
        variables = (reference() for reference in references)
        return [v for v in variables if v is not None and v.device in wanted]

    def describe(self, device: str) -> str:
        """Describes what a parameter server holds, for messages.

        Args:
            device: Full name of its device.
        """
        return holdings.describe(
            [
                (each.path, initialization.num_bytes(each.shape, each.dtype))
                for each in self.on([device])
            ]
        )

    def remake(self, devices: Iterable[str]) -> list[RemoteVariable]:
        """Makes all resources again, without values, on replaced servers.

        Args:
            devices: Full names of their devices.

        Returns:
            The variables, which need values.
        """
        devices = list(devices)
        for device in devices:
            self._locks.forget(device)
        variables = self.on(devices)
        for variable in variables:
            variable.remake()
        with self._lock:
            tallies = [reference() for reference in self._tallies]
        for tally in tallies:
            if tally is not None and tally.device in devices:
                tally.remake()
                with compat.clear_device():
                    _clear(tally)
        return variables


def _clear(tally: RemoteVariable) -> None:
    """Sets a variable to zero, wherever it is."""
    zeros = initialization.InitialValue(
        tally.shape, tally.dtype, lambda: tf.zeros(tally.shape, tally.dtype)
    )
    initialization.fill(tally, zeros)
