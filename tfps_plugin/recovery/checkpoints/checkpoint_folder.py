"""Folder of a `CheckpointManager`: its checkpoints and their scores."""

import json
import logging
import posixpath
import re

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_checkpoints as compat
from tfps_plugin.recovery.checkpoints import committing
from tfps_plugin.recovery.checkpoints.retention import Retention
from tfps_plugin.recovery.incremental import chain

_logger = logging.getLogger("tfps_plugin.recovery")

_SCORES = ".tfps-scores.json"


class CheckpointFolder:
    """The checkpoints of a folder, their scores, and the choice of which stay.

    Threading: one call at a time.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: str, name: str, retention: Retention) -> None:
        """Creates the folder; removes files of interrupted writes.

        Args:
            path: The folder.
            name: First part of the names of checkpoints.
            retention: Selects the checkpoints to keep.
        """
        self.path = path
        self._name = name
        self._retention = retention
        tf.io.gfile.makedirs(path)
        committing.discard_all(path)
        known = self._full_ones().values()
        for full in self._folders_of_increments():
            folder = chain.folder_of_increments(full)
            if full in known:
                committing.discard_all(folder)
            else:
                # A deletion was interrupted: they are useless without it.
                tf.io.gfile.rmtree(folder)
        self._scores = self._read_scores()

    def prefixes(self) -> dict[int, str]:
        """Returns number and prefix of every checkpoint, oldest first."""
        found = self._full_ones()
        for full in self._folders_of_increments():
            folder = chain.folder_of_increments(full)
            for number in self._numbers_in(folder):
                prefix = posixpath.join(folder, f"{self._name}-{number}")
                found.setdefault(number, prefix)
        return dict(sorted(found.items()))

    def without_index(self) -> list[str]:
        """Returns prefixes that have data files but no index, newest first.

        Lists only those newer than every checkpoint: their index was lost, or
        the process that wrote them died.
        """
        newest = max(self.prefixes(), default=-1)
        found = []
        for folder in [
            self.path,
            *map(chain.folder_of_increments, self._folders_of_increments()),
        ]:
            found += [
                (number, posixpath.join(folder, f"{self._name}-{number}"))
                for number in self._numbers_in(folder, r"data-\d+-of-\d+")
                if number > newest
            ]
        return [prefix for _, prefix in sorted(found, reverse=True)]

    def full_prefix(self, number: int) -> str:
        """Returns the prefix of the full checkpoint with a number."""
        return posixpath.join(self.path, f"{self._name}-{number}")

    def increment_prefix(self, full: str, number: int) -> str:
        """Returns the prefix of an increment.

        Args:
            full: Prefix of the full checkpoint that it follows.
            number: Number of the increment.
        """
        return posixpath.join(
            chain.folder_of_increments(full), f"{self._name}-{number}"
        )

    def best(self) -> str | None:
        """Returns the prefix with the best score; None without scores."""
        one = Retention(None, 1, self._retention.larger_is_better)
        prefixes = self.prefixes()
        best = one.best(list(prefixes), self._scores)
        return prefixes[best[0]] if best else None

    def written(self, prefix: str, number: int, score: float | None) -> None:
        """Records a new checkpoint, and deletes those that are not kept.

        Args:
            prefix: Prefix of the new checkpoint.
            number: Its number.
            score: Quality of its model; None without a score.
        """
        if prefix == self.full_prefix(number):
            # They belong to an older checkpoint of the same name.
            self._remove_increments(prefix)
        self._scores.pop(number, None)
        if score is not None:
            self._scores[number] = float(score)
        prefixes = self.prefixes()
        numbers = {prefix: n for n, prefix in prefixes.items()}
        chains = {
            n: numbers[self._full_one(n, each)] for n, each in prefixes.items()
        }
        unwanted = self._retention.to_delete(list(prefixes), self._scores)
        for full in chain.to_delete(unwanted, chains):
            self._remove(prefixes[full])
            for old in [n for n, its in chains.items() if its == full]:
                self._scores.pop(old, None)
        self._write_scores()
        compat.write_checkpoint_state(
            self.path, list(self._full_ones().values())
        )

    def delete_all(self) -> None:
        """Deletes all checkpoints, and the folder if it is then empty."""
        for prefix in self._full_ones().values():
            self._remove(prefix)
        for full in self._folders_of_increments():
            tf.io.gfile.rmtree(chain.folder_of_increments(full))
        self._scores = {}
        for name in (_SCORES, "checkpoint"):
            path = posixpath.join(self.path, name)
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)
        if tf.io.gfile.isdir(self.path) and not _names_in(self.path):
            tf.io.gfile.rmtree(self.path)

    def _full_one(self, number: int, prefix: str) -> str:
        """Returns the full checkpoint of a chain, perhaps itself."""
        if prefix == self.full_prefix(number):
            return prefix
        return chain.full_one_of(prefix)

    def _remove(self, prefix: str) -> None:
        committing.remove(prefix)
        self._remove_increments(prefix)

    def _remove_increments(self, prefix: str) -> None:
        folder = chain.folder_of_increments(prefix)
        if tf.io.gfile.isdir(folder):
            tf.io.gfile.rmtree(folder)

    def _full_ones(self) -> dict[int, str]:
        numbers = self._numbers_in(self.path)
        return {number: self.full_prefix(number) for number in numbers}

    def _folders_of_increments(self) -> list[str]:
        """Returns prefixes of full checkpoints with a folder of increments."""
        numbers = (
            chain.number_of_full(name, self._name)
            for name in _names_in(self.path)
        )
        return [self.full_prefix(n) for n in numbers if n is not None]

    def _numbers_in(self, folder: str, ending: str = "index") -> list[int]:
        pattern = re.compile(rf"{re.escape(self._name)}-(\d+)\.{ending}")
        found = map(pattern.fullmatch, _names_in(folder))
        return sorted({int(match[1]) for match in found if match})

    def _read_scores(self) -> dict[int, float]:
        path = posixpath.join(self.path, _SCORES)
        try:
            with tf.io.gfile.GFile(path) as file:
                return {int(k): float(v) for k, v in json.load(file).items()}
        except tf.errors.NotFoundError:
            return {}
        except (ValueError, AttributeError, tf.errors.OpError) as error:
            _logger.warning(
                "The scores in %s cannot be read and are ignored: %s: %s",
                path,
                type(error).__name__,
                error,
            )
            return {}

    def _write_scores(self) -> None:
        path = posixpath.join(self.path, _SCORES)
        if not self._scores and not tf.io.gfile.exists(path):
            return
        with tf.io.gfile.GFile(path + ".new", "w") as file:
            json.dump(self._scores, file)
        tf.io.gfile.rename(path + ".new", path, overwrite=True)


def _names_in(folder: str) -> list[str]:
    """Lists a folder; a missing one is empty, as object stores have none."""
    if not tf.io.gfile.isdir(folder):
        return []
    return list(tf.io.gfile.listdir(folder))
