"""What parameter servers hold at one moment, to be written to a checkpoint."""

from collections.abc import Sequence

from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.row_marks import Marks


class Snapshot:
    """Values of parts: of tables what has changed, of all else everything.

    Until it is written, parameter servers hold it beside their variables.
    """

    def __init__(self, parts: Sequence[Part], since: Marks) -> None:
        """Copies, every ps its own at the same time.

        Args:
            parts: What to copy; nothing may change it meanwhile.
            since: The marks of the tables in the checkpoint before. What has
                none is copied whole.
        """
        known = row_marks.known_tables(parts, since)
        self._whole = part_files.WholeParts(
            [part for part in parts if part.key not in known]
        )
        self._changed = change_files.ChangedRows(
            [part for part in parts if part.key in known], since
        )

    def marks(self) -> Marks:
        """The marks of all tables, for the increment that follows."""
        return {**self._whole.marks(), **self._changed.marks}

    def write(self, prefix: str, *, by_ps: bool) -> list[str]:
        """Writes it to files.

        Args:
            prefix: What the names of the files begin with.
            by_ps: Whether each ps writes its own; else the chief writes all.

        Returns:
            The prefixes of what was written, to be merged.
        """
        return [
            *self._whole.write(f"{prefix}-whole", by_ps=by_ps),
            *self._changed.write(f"{prefix}-changed", by_ps=by_ps),
        ]
