"""The rule of a table for ids that have no row."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfps_plugin.exports import first_rows
from tfps_plugin.exports.first_rows import FirstRows

# As in `tfps.layers.DynamicEmbedding(unknown=...)`.
ZEROS = "zeros"
INITIAL = "initial"
SHARED = "shared"


@dataclasses.dataclass(frozen=True)
class UnknownIds:
    """The rule by which a table gives numbers for ids that have no row.

    Attributes:
        policy: `ZEROS`, `INITIAL` or `SHARED`.
        first: First rows of ids, for `INITIAL`.
        shared: Path of the variable that is the row of all such ids, for
            `SHARED`.
    """

    policy: str = ZEROS
    first: FirstRows | None = None
    shared: str | None = None

    def rows_of(
        self, ids: np.ndarray, width: int, dense: Mapping[str, np.ndarray]
    ) -> Any:
        """Returns what the table gives for ids that have no row.

        Args:
            ids: Any int64, shape `(N,)`.
            width: Length of a row.
            dense: Values of all variables that are no tables, by path.

        Returns:
            Numbers that NumPy brings to the shape `(N, width)`.
        """
        if self.first is not None:
            return self.first.of(ids, width)
        return 0 if self.shared is None else dense[self.shared]


ALL_ZEROS = UnknownIds()


def decode(fields: Mapping[str, Any], table: str) -> UnknownIds:
    """Returns the rule that a manifest has.

    Args:
        fields: The rule as a dict.
        table: Name of the table, for messages.

    Raises:
        ValueError: If it is none that this release knows.
    """
    policy = _known(table, "policy", fields["policy"], (ZEROS, INITIAL, SHARED))
    first = fields["first"]
    if first is not None:
        first = FirstRows(
            _known(
                table,
                "distribution",
                first["distribution"],
                first_rows.DISTRIBUTIONS,
            ),
            tuple(first["parameters"]),
            first["seed"],
            _known(table, "dtype", first["dtype"], first_rows.DTYPES),
        )
    return UnknownIds(policy, first, fields["shared"])


def _known(table: str, what: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(
            f"its table {table!r} gives ids without a row numbers by the "
            f"{what} {value!r}, and this release of tfps_plugin knows "
            f"{', '.join(known)}"
        )
    return value
