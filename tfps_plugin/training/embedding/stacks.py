"""Choice of the tables that are stacked. Pure: no TensorFlow."""

import dataclasses
import itertools
import operator
from collections.abc import Sequence

# Of tables by id in one stack: rows, and counters of rows, are numbered with 32
# bits.
MOST_ROWS = 500_000_000

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
        kind: Only tables of equal kinds are stacked. "" if the table has a
            vocabulary; otherwise its rules, for messages, too.
    """

    name: str
    rows: int
    width: int
    is_alone: bool = False
    kind: str = ""


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
        stacking: "auto" stacks all tables of one width and kind, up to
            `MOST_ROWS` without a vocabulary. A list of names, or
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
    stacks = [
        TableStack(_name(prefix, index, stacked), stacked)
        for prefix, is_dynamic in (("stack", False), ("dynamic_stack", True))
        for index, stacked in enumerate(
            each for each in members if bool(each[0].kind) == is_dynamic
        )
    ]
    _require_own_names(stacks, tables)
    return tuple(stacks)


def _name(prefix: str, index: int, tables: tuple[TableSize, ...]) -> str:
    if len(tables) == 1:
        return tables[0].name
    return f"{prefix}_{index}_width_{tables[0].width}"


def _require_own_names(
    stacks: Sequence[TableStack], tables: Sequence[TableSize]
) -> None:
    names = {table.name for table in tables}
    for stack in stacks:
        if len(stack.tables) > 1 and stack.name in names:
            raise ValueError(
                f"The table {stack.name!r} has the name of a stack of other "
                f"tables. Expected another name. Received: name={stack.name!r}"
            )


def _groups(
    tables: Sequence[TableSize], stacking: Stacking
) -> dict[str, object]:
    """Maps each table's name to a key; tables with equal keys are stacked."""
    if stacking == "auto":
        return _groups_by_kind(tables)
    # Not stacked: a key that no other table has.
    groups: dict[str, object] = {table.name: table.name for table in tables}
    widths = {table.name: table.width for table in tables}
    by_name = {table.name: table for table in tables}
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
        _require_same_kind([by_name[name] for name in names], stacking)
    return groups


def _groups_by_kind(tables: Sequence[TableSize]) -> dict[str, object]:
    groups: dict[str, object] = {}
    # Number and rows of the stack that tables of a kind go to.
    latest: dict[object, tuple[int, int]] = {}
    for table in tables:
        kind = (table.kind, table.width)
        if table.is_alone:
            groups[table.name] = table.name
            continue
        number, rows = latest.get(kind, (0, 0))
        if table.kind and rows and rows + table.rows > MOST_ROWS:
            number, rows = number + 1, 0
        latest[kind] = number, rows + table.rows
        groups[table.name] = (*kind, number)
    return groups


def _require_same_kind(tables: Sequence[TableSize], stacking: Stacking) -> None:
    """Refuses to stack tables, whatever their widths."""
    if len(tables) < 2:
        return
    for table in tables:
        if table.is_alone:
            raise ValueError(
                f"`table_stacking` names the table {table.name!r}, which has "
                "storage, and so a limit in memory of its own; such a table is "
                "not stacked with others. Expected: tables without storage. "
                f"Received: table_stacking={stacking!r}"
            )
    if len({table.kind for table in tables}) > 1:
        shown = "; ".join(
            f"{table.name}: {table.kind or 'has a vocabulary'}"
            for table in tables
        )
        raise ValueError(
            "Tables without a vocabulary are stacked with each other alone, "
            "and only those of equal `admission` and `eviction`. Received: "
            f"table_stacking={stacking!r} with {shown}. Use "
            'table_stacking="auto" to stack those that can be.'
        )
    num_rows = sum(table.rows for table in tables)
    if tables[0].kind and num_rows > MOST_ROWS:
        raise ValueError(
            f"Tables without a vocabulary are stacked up to {MOST_ROWS:,} rows "
            "together, with those that their `capacity` has to spare. "
            f"Received: table_stacking={stacking!r} with {num_rows:,} rows. "
            'Use table_stacking="auto" to make as many stacks as there need be.'
        )


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
