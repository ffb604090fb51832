"""Choice of the tables that are stacked. Pure: no TensorFlow."""

import dataclasses
import itertools
import operator
from collections.abc import Sequence

# One list of names is one stack; a list of lists is several.
Stacking = str | Sequence[str] | Sequence[Sequence[str]] | None


@dataclasses.dataclass(frozen=True)
class TableSize:
    """A table, as far as stacking is concerned.

    Attributes:
        name: Unique name of the table.
        rows: Number of rows.
        width: Length of a row.
        is_alone: Whether it is never stacked.
    """

    name: str
    rows: int
    width: int
    is_alone: bool = False


@dataclasses.dataclass(frozen=True)
class TableStack:
    """Tables of one width, one after the other, as one variable.

    Attributes:
        name: Name of the variable.
        tables: The tables, in the order of their rows, sorted by name.
    """

    name: str
    tables: tuple[TableSize, ...]

    @property
    def width(self) -> int:
        """Length of a row."""
        return self.tables[0].width

    @property
    def rows(self) -> int:
        """Number of rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first row of each table."""
        return tuple(
            itertools.accumulate(
                (table.rows for table in self.tables[:-1]), initial=0
            )
        )

    def range_of(self, table: str) -> range:
        """Returns the rows of the stack that belong to a table."""
        for size, offset in zip(self.tables, self.offsets, strict=True):
            if size.name == table:
                return range(offset, offset + size.rows)
        raise KeyError(table)


def stack_tables(
    tables: Sequence[TableSize], stacking: Stacking
) -> tuple[TableStack, ...]:
    """Decides which tables become one variable.

    Args:
        tables: All tables. Their order does not matter: saved optimizer state
            of a stack fits as long as the tables are the same.
        stacking: "auto" stacks all tables of one width. A list of names, or
            of lists of names, stacks those and leaves the others alone. None
            disables stacking.

    Returns:
        The stacks, by the names of their first tables. Each table is in one.

    Raises:
        ValueError: If `stacking` names tables that cannot be stacked.
    """
    tables = sorted(tables, key=operator.attrgetter("name"))
    groups = _groups(tables, stacking)
    members = [
        tuple(table for table in tables if groups[table.name] == group)
        for group in dict.fromkeys(groups[table.name] for table in tables)
    ]
    return tuple(
        TableStack(_name(index, stacked), stacked)
        for index, stacked in enumerate(members)
    )


def _name(index: int, tables: tuple[TableSize, ...]) -> str:
    if len(tables) == 1:
        return tables[0].name
    return f"stack_{index}_width_{tables[0].width}"


def _groups(
    tables: Sequence[TableSize], stacking: Stacking
) -> dict[str, object]:
    """Maps each table's name to a key; tables with equal keys are stacked."""
    if stacking == "auto":
        return {
            table.name: table.name if table.is_alone else table.width
            for table in tables
        }
    # Not stacked: a key that no other table has.
    groups: dict[str, object] = {table.name: table.name for table in tables}
    widths = {table.name: table.width for table in tables}
    seen: set[str] = set()
    for number, names in enumerate(_lists_of_names(stacking)):
        for name in names:
            if name not in widths:
                raise ValueError(
                    f"`table_stacking` names the table {name!r}, which no "
                    f"feature uses. Expected: some of {sorted(widths)}. "
                    f"Received: table_stacking={stacking!r}"
                )
            if name in seen:
                raise ValueError(
                    f"`table_stacking` names the table {name!r} twice; a "
                    "table can be in one stack only. Received: "
                    f"table_stacking={stacking!r}"
                )
            seen.add(name)
            groups[name] = number
        if len({widths[name] for name in names}) > 1:
            shown = ", ".join(f"{name}: {widths[name]}" for name in names)
            raise ValueError(
                "Only tables of the same embedding_dim can be stacked. "
                f"Received: table_stacking with {shown}. Use "
                'table_stacking="auto" to stack those that can be.'
            )
    return groups


def _lists_of_names(stacking: Stacking) -> list[list[str]]:
    if stacking is None:
        return []
    if isinstance(stacking, list | tuple):
        if all(isinstance(each, str) for each in stacking):
            return [list(stacking)] if stacking else []
        if all(
            isinstance(each, list | tuple)
            and each
            and all(isinstance(name, str) for name in each)
            for each in stacking
        ):
            return [list(each) for each in stacking]
    raise ValueError(
        '`table_stacking` is expected to be "auto", None, a list of table '
        f"names or a list of such lists. Received: table_stacking={stacking!r}"
    )
