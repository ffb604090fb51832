"""Places of the directories of a table, on parameter servers."""

import contextlib
import logging
import threading
from collections.abc import Collection
from collections.abc import Iterator

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.dynamic.cells import Cells
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.free_rows import FreeRows
from tfps_plugin.variables.dynamic.shard.hash_index import HashIndex
from tfps_plugin.variables.dynamic.shard.tallies import Tallies

_logger = logging.getLogger("tfps_plugin.variables")


class DirectoryPlaces:
    """Notes where directories are made, to free or to outdate them.

    A parameter server that stays would keep the directory of every part of the
    table that it ever had.

    Threading: safe from several threads; functions are traced on any. Guarded
    by `_lock`: the directories.
    """

    def __init__(self, space: RowSpace) -> None:
        """Begins without directories.

        Args:
            space: Rows of all buckets of the table.
        """
        self._space = space
        self._lock = threading.Lock()
        # Names by device and rows. Not the directories themselves, which would
        # keep the variables of shards that are gone.
        self._noted: dict[tuple[str, range], str] = {}

    def note(self, device: str, rows: range, name: str) -> None:
        """Notes that operations on a device use the directory of some rows."""
        with self._lock:
            self._noted[device, rows] = name

    def free(
        self, current: Collection[tuple[str, range]], devices: Collection[str]
    ) -> None:
        """Frees all directories that were noted, but some.

        Nothing may use those others any more. An error is logged.

        Args:
            current: Device and rows of those that stay.
            devices: The devices that there are; others are gone, and their
                directories with them.
        """
        with self._lock:
            past = {
                place: self._noted.pop(place)
                for place in self._noted.keys() - set(current)
            }
        for (device, rows), name in past.items():
            if device in devices:
                self._free_one(device, rows, name)

    def outdate(self, device: str, rows: range) -> None:
        """Makes the next lookup build a directory anew.

        What a directory counts by itself, such as the time, is then taken from
        the variables of the table, which others have set. An error is logged.

        Args:
            device: Its device.
            rows: Its rows.
        """
        with self._lock:
            name = self._noted.get((device, rows))
        if name is None:
            return
        with _on(device, name, "may not be built anew"):
            self._index(name).forget_versions()

    def _free_one(self, device: str, rows: range, name: str) -> None:
        cells = Cells(self._space, self._space.buckets(rows))
        with _on(device, name, "may not be free yet"):
            self._index(name).free()
            FreeRows(name, cells).free()
            Tallies(name, self._space.num_tables).free()

    def _index(self, name: str) -> HashIndex:
        # A place or two are enough for a handle.
        return HashIndex(name, [1] * self._space.num_tables)


@contextlib.contextmanager
def _on(device: str, name: str, what: str) -> Iterator[None]:
    """Runs operations on a parameter server at once, and logs its errors."""
    try:
        with tf.init_scope(), compat.clear_device(), tf.device(device):
            yield
    except tf.errors.OpError as error:
        _logger.log(
            # A lost ps has lost its directories, too.
            logging.DEBUG
            if chief_reads.is_about_the_cluster(error)
            else logging.WARNING,
            "The directory %s on %s %s: %s",
            name,
            device,
            what,
            error,
        )
