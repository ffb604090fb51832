"""The exports of one model to one folder."""

import dataclasses
import logging
import operator
import os
import pathlib
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfps_plugin.cluster.chief import connection
from tfps_plugin.exports import array_files
from tfps_plugin.exports.export_folder import ExportFolder
from tfps_plugin.exports.export_folder import NewExport
from tfps_plugin.exports.manifest import Export
from tfps_plugin.exports.manifest import Manifest
from tfps_plugin.exports.manifest import StoredTable
from tfps_plugin.exports.unknown_ids import UnknownIds
from tfps_plugin.training.exports import folder_lock
from tfps_plugin.training.exports import model_tables
from tfps_plugin.training.exports import one_moment
from tfps_plugin.training.exports import row_copies
from tfps_plugin.training.exports.model_tables import ModelTable
from tfps_plugin.training.exports.taken_rows import Memories
from tfps_plugin.training.exports.taken_rows import TakenRows
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.chief.pending_writes import PendingWrites

_logger = logging.getLogger("tfps_plugin.training")

# Tables that share a variable, for each variable.
_Groups = list[list[ModelTable]]


@dataclasses.dataclass(frozen=True)
class WrittenExport:
    """An export, as the program that wrote it sees it.

    Attributes:
        number: Its number, from 1.
        step: Optimizer step of the values.
        is_base: Whether it has whole tables, so that no earlier export is
            needed.
        num_rows: Number of rows that it has.
        num_removed: Number of ids that have no row any more.
        num_bytes: Size of its files.
    """

    number: int
    step: int
    is_base: bool
    num_rows: int
    num_removed: int
    num_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Taken:
    """Values of a model at one moment, to be written.

    Attributes:
        step: Optimizer step.
        time: Seconds since 1970.
        groups: Tables that share a variable, for each variable.
        rows: Rows of each variable.
        unknown: Rule of each table for ids without a row, by its name.
        dense: Values of all other variables, by path.
        before: The manifest that they follow.
        is_base: Whether a base is due.
        release: Lets parameter servers leave that have rows of it.
    """

    step: int
    time: float
    groups: _Groups
    rows: list[TakenRows]
    unknown: Mapping[str, UnknownIds]
    dense: Mapping[str, np.ndarray]
    before: Manifest | None
    is_base: bool
    release: Callable[[], None]


class Exporter:
    """Exports of one model to one folder.

    An export has two halves: `take` copies values where they are, while no
    step may change them; `write` brings them to the folder, while training goes
    on.

    Threading: one thread at a time may be in `take` or `write`.
    """

    def __init__(self, directory: Any, compact_at: float) -> None:
        """Names the folder; writes nothing yet.

        Args:
            directory: The folder.
            compact_at: Size of all changes since the base, as a share of the
                base, at which the next export is a base.

        Raises:
            ValueError: If `directory` is no folder of this machine, or
                `compact_at` is below zero.
        """
        directory = os.fspath(directory)
        if not directory or "://" in directory:
            raise ValueError(
                "Exports are written to a folder that this machine has "
                "mounted, so that a reader needs NumPy only. Received: "
                f"directory={directory!r}"
            )
        if not compact_at >= 0:
            raise ValueError(
                "compact_at must be a share of the base, 0 or more. Received: "
                f"compact_at={compact_at!r}"
            )
        self.compact_at = compact_at
        self._folder = ExportFolder(pathlib.Path(directory))
        # Of the newest export, if it is of this object: its identity, and
        # what is remembered of the rows of each variable.
        self._newest: str | None = None
        self._memories: list[Memories] = []

    def take(self, model: Any, step: int | None) -> Taken:
        """Copies what has changed, once no step is in flight.

        Until it is written, no parameter server that has copies leaves.

        Args:
            model: The model.
            step: Optimizer step of the values; None for that of its optimizer.

        Raises:
            ExportUnreadableError: If the folder has a damaged manifest.
            TypeError: If `step` is no whole number.
            ValueError: If the model has nothing to export.
            tf.errors.OpError: If a ps does not answer, or variables are
                restored each time that they are read.
            ParameterServerLostError: If a ps is lost for good.
        """
        if step is not None:
            step = _whole_number(step)
        groups = _groups(model_tables.tables_of(model))
        if not groups:
            raise ValueError(
                "The model has no table to export. Expected at least one "
                "tfps.layers.DynamicEmbedding, DistributedEmbedding or "
                "keras.layers.Embedding. Save the model instead."
            )
        steps_in_flight.finish()
        release = connection.present().part(PendingWrites).begin()
        try:
            return one_moment.take(
                one_moment.failovers_of(model),
                lambda: self._take(model, step, groups, release),
            )
        except BaseException:
            release()
            raise

    def _take(
        self,
        model: Any,
        step: int | None,
        groups: _Groups,
        release: Callable[[], None],
    ) -> Taken:
        tables = [table for group in groups for table in group]
        before = self._folder.read()
        memories = self._memories
        is_base = not self._are_changes_known(before, groups)
        if is_base:
            memories = [{} for _ in groups]
        rows = _take_rows(groups, memories)
        dense = model_tables.dense_variables(model, tables)
        values = model_tables.dense_values(dense)
        if (
            before is not None
            and not is_base
            and self._compaction_is_due(before)
            and not (
                all(each.is_empty() for each in rows)
                and array_files.archive_checksum(values)
                == before.newest.dense.sha256
            )
        ):
            is_base = True
            rows = _take_rows(groups, [{} for _ in groups])
        return Taken(
            _step_of(model) if step is None else step,
            time.time(),
            groups,
            rows,
            {
                table.name: model_tables.unknown_ids(table, dense)
                for table in tables
            },
            values,
            before,
            is_base,
            release,
        )

    def _are_changes_known(
        self, before: Manifest | None, groups: _Groups
    ) -> bool:
        if before is None or before.newest.identity != self._newest:
            # It is not known what has changed since.
            return False
        signatures = {
            (table.name, table.kind, table.dtype.str, table.width)
            for group in groups
            for table in group
        }
        exported = {table.signature for table in before.newest.tables}
        return signatures == exported and len(groups) == len(self._memories)

    def _compaction_is_due(self, before: Manifest) -> bool:
        base, *changes = before.exports
        num_bytes = sum(export.num_bytes for export in changes)
        return num_bytes > self.compact_at * base.num_bytes

    def write(self, taken: Taken) -> WrittenExport | None:
        """Writes an export, which readers then see.

        Args:
            taken: The values.

        Returns:
            The export; None if nothing has changed.

        Raises:
            ExportUnreadableError: If another program exports to the folder.
            OSError: If a file cannot be written.
            tf.errors.OpError: If a ps is lost.
        """
        try:
            with folder_lock.held(self._folder.path):
                return self._write(taken)
        finally:
            taken.release()

    def _write(self, taken: Taken) -> WrittenExport | None:
        new = self._folder.begin()
        try:
            export = self._export(new, taken)
            if taken.before is not None and _is_empty(
                export, taken.before.newest
            ):
                self._memories = [rows.memories for rows in taken.rows]
                return None
            self._folder.commit(new, taken.before, export)
        finally:
            # After a commit, it is not there any more.
            new.discard()
        self._newest = export.identity
        self._memories = [rows.memories for rows in taken.rows]
        written = WrittenExport(
            export.number,
            export.step,
            export.follows is None,
            sum(table.num_rows for table in export.tables),
            sum(table.num_removed for table in export.tables),
            export.num_bytes,
        )
        _logger.info("Exported to %s: %s", self._folder.path, written)
        return written

    def _export(self, new: NewExport, taken: Taken) -> Export:
        before = None if taken.before is None else taken.before.newest
        tables = [
            _write_table(new, table, rows, taken.unknown[table.name])
            for group, rows in zip(taken.groups, taken.rows, strict=True)
            for table in group
        ]
        return Export(
            number=1 if before is None else before.number + 1,
            identity=new.identity,
            follows=(
                None if before is None or taken.is_base else before.identity
            ),
            step=taken.step,
            time=taken.time,
            tables=tuple(tables),
            dense=new.add_dense(taken.dense),
        )


def _take_rows(groups: _Groups, since: list[Memories]) -> list[TakenRows]:
    return [
        row_copies.take(
            group[0].variable, group[0].records, group[0].space, memories
        )
        for group, memories in zip(groups, since, strict=True)
    ]


def _write_table(
    new: NewExport, table: ModelTable, taken: TakenRows, unknown: UnknownIds
) -> StoredTable:
    rows = table.rows if table.records is None else None
    no_keys = np.zeros(0, np.int64)
    return new.add_table(
        table.name,
        kind=table.kind,
        dtype=table.dtype,
        width=table.width,
        is_whole=taken.is_whole,
        num_rows=taken.num_rows(rows, table.number),
        blocks=taken.blocks(rows, table.number),
        removed=no_keys
        if table.records is None
        else taken.removed(table.number),
        unknown=unknown,
    )


def _is_empty(export: Export, before: Export) -> bool:
    """Returns whether an export has nothing that the one before has not."""
    return export.dense.sha256 == before.dense.sha256 and not any(
        table.is_whole or table.num_rows or table.num_removed
        for table in export.tables
    )


def _groups(tables: list[ModelTable]) -> _Groups:
    groups: dict[int, list[ModelTable]] = {}
    for table in tables:
        groups.setdefault(id(table.variable), []).append(table)
    return list(groups.values())


def _whole_number(step: Any) -> int:
    """Returns a step as the manifest has it, such as that of a NumPy array."""
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(
            "The step of an export must be a whole number. Received: "
            f"step={step!r}. Leave it out for that of the optimizer."
        ) from None


def _step_of(model: Any) -> int:
    optimizer = getattr(model, "optimizer", None)
    return 0 if optimizer is None else int(np.asarray(optimizer.iterations))
