"""Option of a table that is larger than memory. Pure."""

import dataclasses
import os
from typing import Any


@dataclasses.dataclass(frozen=True)
class TieredStorage:
    """Storage of a table on the disks of parameter servers.

    ```python
    layer = tfps.layers.DynamicEmbedding(
        64,
        capacity=100_000_000,
        storage=tfps.TieredStorage(
            memory_rows=10_000_000, directory="/local_disk"
        ),
    )
    ```

    Rows, and the optimizer's slots with them, are in files on the disk of the
    parameter server that holds them. The pages of the files that steps use
    most are in memory. A lookup begins to read all pages that it needs at
    once, those of the slots too, before the step computes.

    The files have no names, and are gone with their process: after a crash,
    rows come from the last checkpoint as those of any table.

    A page has 4,096 bytes, and several rows. Ids that appear early, as frequent
    ids do, have their rows together.

    Attributes:
        memory_rows: Number of rows of the table that stay in memory, on all
            parameter servers together. Each variable of the table has its
            share of pages; a few percent more may be in memory for a moment.
        directory: Folder on each parameter server, best on a local solid-state
            disk; it is made if need be. None: its folder for temporary files.
            It needs room for the whole table with all slots, as much again
            while a checkpoint is written, and as much again for the standby
            copies of another parameter server (`replicate="ps"`).

    Raises:
        ValueError: If one of them is wrong.
    """

    memory_rows: int
    directory: str | None = None

    def __post_init__(self) -> None:
        if (
            isinstance(self.memory_rows, bool)
            or not isinstance(self.memory_rows, int)
            or self.memory_rows < 1
        ):
            raise ValueError(
                "`memory_rows` of TieredStorage is expected to be a positive "
                f"integer. Received: memory_rows={self.memory_rows!r}. Give "
                "the number of rows that are to stay in memory."
            )
        if self.directory is not None:
            directory: Any = self.directory
            if isinstance(directory, os.PathLike):
                directory = os.fspath(directory)
            if not isinstance(directory, str) or not os.path.isabs(directory):
                raise ValueError(
                    "`directory` of TieredStorage is expected to be an "
                    "absolute path on the parameter servers, or None. "
                    f"Received: directory={self.directory!r}. Leave it out for "
                    "their folder of temporary files."
                )
            object.__setattr__(self, "directory", directory)

    @property
    def folder(self) -> str:
        """The folder on parameter servers; "" for that of temporary files."""
        return self.directory or ""

    def share_in_memory(self, num_rows: int) -> float:
        """Returns the share of a table that stays in memory.

        Args:
            num_rows: Number of rows of the table.
        """
        return min(1.0, self.memory_rows / max(1, num_rows))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that it is made with."""
        return dataclasses.asdict(self)
