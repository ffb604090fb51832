"""Table of features that work on a cluster.

    python -m integration_tests.keras_surface.report [pytest's arguments]

All cells run. A row is a feature, a column where the variables are and what is
read; a cell is "ok", "FAIL", "xfail" (a known difference), "skip", or "-"
(there is none).
"""

import pathlib
import sys
from typing import Any

import keras
import pytest
import tensorflow as tf

_HERE = pathlib.Path(__file__).parent
_WORDS = {"passed": "ok", "failed": "FAIL", "skipped": "skip"}


class Table:
    """Gathers the outcome of each test; a plug-in of pytest.

    Attributes:
        cells: The outcome by table, row and column.
    """

    def __init__(self) -> None:
        """Creates an empty table."""
        self.cells: dict[str, dict[str, dict[str, str]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Records the outcome of a test."""
        report = yield
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "feature" in parameters and (
            report.when == "call" or report.outcome != "passed"
        ):
            row, column = parameters["feature"], parameters["placement"]
            kind = parameters.get("input_kind")
            table = item.path.stem.removesuffix("_test")
            if table == "inputs":
                row, column = kind, f"{parameters['feature']}/{column}"
            elif kind is not None:
                column = f"{kind}/{column}"
            word = _WORDS[report.outcome]
            if hasattr(report, "wasxfail"):
                word = "xfail"
            rows = self.cells.setdefault(table, {})
            rows.setdefault(row, {})[column] = word
        return report

    def __str__(self) -> str:
        """Returns the tables, one below the other."""
        lines = [f"TensorFlow {tf.__version__}, Keras {keras.__version__}"]
        for table, rows in self.cells.items():
            columns = list(
                dict.fromkeys(c for row in rows.values() for c in row)
            )
            width = max(map(len, [table, *rows]))
            lines += ["", table.ljust(width) + "  " + "  ".join(columns)]
            for row, cells in rows.items():
                words = [
                    cells.get(column, "-").ljust(len(column))
                    for column in columns
                ]
                lines.append(row.ljust(width) + "  " + "  ".join(words))
        return "\n".join(line.rstrip() for line in lines)


def main() -> int:
    """Runs the suite and prints the table; returns pytest's exit status."""
    table = Table()
    arguments = [str(_HERE), "-q", "--all", *sys.argv[1:]]
    status = pytest.main(arguments, plugins=[table])
    print(f"\n{table}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
