"""Follows exported tables, as a process that serves them does.

    python -m integration_tests.benchmarks.export_reader exported

Prints a line at each new export: its number and step, the rows of a table, the
seconds since a parameter server had the values, and the row of an id. Each line
of standard input is a question: a step, ids, and the rows that the model has
for them. The reader compares when it has the export of that step, and fails if
a number is another one. It ends with its standard input, and imports no
TensorFlow.
"""

import argparse
import json
import os
import pathlib
import select
import sys
import time
from typing import Any

import numpy as np

from tfps_plugin import serving

from . import processes

_POLL_SECONDS = 0.1
_WAIT_SECONDS = 120.0


class Reader:
    """Reads one table of an export folder."""

    def __init__(self, folder: pathlib.Path, table: str, row: int) -> None:
        self._folder = folder
        self._table = table
        self._row = row
        self._tables: serving.Tables | None = None

    def follow(self) -> None:
        """Reads the newest export, and prints a line if it is new."""
        began_at = time.perf_counter()
        if self._tables is None:
            if not (self._folder / "manifest.json").exists():
                return
            self._tables = serving.Tables(self._folder)
        elif self._tables.refresh() is None:
            return
        seconds = time.perf_counter() - began_at
        now = self._tables.snapshot()
        behind = time.time() - now.export.time
        table = now.tables[self._table]
        (row,) = table.lookup([self._row], [np.nan] * table.width)
        numbers = np.array2string(row[:3], precision=5)
        if np.isnan(row).all():
            numbers = "none"
        elif not np.isfinite(row).all():
            raise SystemExit(f"reader: the row of {self._row} is {row}")
        stored = next(
            each for each in now.export.tables if each.name == self._table
        )
        print(
            f"reader: export {now.export.number}, step {now.export.step}, "
            f"{'whole' if stored.is_whole else 'changes'}: "
            f"{stored.num_rows} rows, {stored.num_removed} removed, "
            f"{stored.num_bytes / 1e6:.1f} MB; read in {seconds:.2f} s, "
            f"{behind:.1f} s behind; {len(table)} rows in "
            f"{processes.resident_bytes(os.getpid()) / 1e6:.0f} MB; row of "
            f"{self._row}: {numbers}",
            flush=True,
        )

    def check(self, question: dict[str, Any]) -> None:
        """Compares rows with those of the model, at the same step.

        Args:
            question: "step", "ids" and "rows".
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while self._tables is None or self._tables.step < question["step"]:
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"reader: no export of step {question['step']} within "
                    f"{_WAIT_SECONDS:.0f} s"
                )
            self.follow()
            select.select([], [], [], _POLL_SECONDS)
        found = self._tables[self._table].lookup(question["ids"])
        expected = np.array(question["rows"], found.dtype)
        if self._tables.step != question["step"] or not np.array_equal(
            found, expected
        ):
            raise SystemExit(
                f"reader: rows of step {self._tables.step} differ from those "
                f"of the model at step {question['step']}, by up to "
                f"{np.abs(found - expected).max()}"
            )
        has_row = np.isin(question["ids"], self._tables[self._table].ids)
        print(
            f"reader: {len(found)} ids at step {question['step']} are those "
            f"of the model to the last bit, {int((~has_row).sum())} of them "
            "without a row",
            flush=True,
        )


def main() -> None:
    """Follows until standard input ends."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--table", default="ids")
    parser.add_argument("--row", type=int, default=7)
    options = parser.parse_args()
    reader = Reader(options.folder, options.table, options.row)
    # Unbuffered: a line in a buffer would not wake `select`.
    questions = open(0, "rb", buffering=0)  # noqa: SIM115
    while True:
        reader.follow()
        if select.select([questions], [], [], _POLL_SECONDS)[0]:
            line = questions.readline()
            if not line:
                break
            reader.check(json.loads(line))
    if "tensorflow" in sys.modules:
        raise SystemExit("reader: it has imported TensorFlow")


if __name__ == "__main__":
    main()
