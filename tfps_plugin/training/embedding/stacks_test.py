import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.training.embedding.stacks import MOST_ROWS
from tfps_plugin.training.embedding.stacks import TableSize
from tfps_plugin.training.embedding.stacks import stack_tables

_SIZES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 3)), min_size=1, max_size=8
)


def _tables(sizes: list[tuple[int, int]]) -> list[TableSize]:
    return [
        TableSize(f"table_{i}", rows, width)
        for i, (rows, width) in enumerate(sizes)
    ]


@given(sizes=_SIZES, data=st.data())
def test_every_row_of_every_table_has_a_place_of_its_own(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    tables = _tables(sizes)
    names = [table.name for table in tables if table.width == 1]
    stacking = data.draw(
        st.sampled_from(["auto", None, names, [names] if names else []])
    )
    stacks = stack_tables(tables, stacking)
    assert sorted(t.name for s in stacks for t in s.tables) == sorted(
        table.name for table in tables
    )
    for stack in stacks:
        assert {table.width for table in stack.tables} == {stack.width}
        taken = [
            row for table in stack.tables for row in stack.range_of(table.name)
        ]
        assert taken == list(range(stack.rows))
        for table in stack.tables:
            assert len(stack.range_of(table.name)) == table.rows
    assert len({stack.name for stack in stacks}) == len(stacks)


def test_tables_of_one_width_are_stacked() -> None:
    stacks = stack_tables(_tables([(3, 4), (5, 8), (2, 4)]), "auto")
    assert [[t.name for t in s.tables] for s in stacks] == [
        ["table_0", "table_2"],
        ["table_1"],
    ]
    assert stacks[0].offsets == (0, 3)
    assert [stack.name for stack in stacks] == ["stack_0_width_4", "table_1"]


def test_a_table_that_is_alone_is_not_stacked() -> None:
    tables = _tables([(3, 4), (5, 4), (2, 4)])
    tables[1] = dataclasses.replace(tables[1], is_alone=True)
    assert [
        [t.name for t in s.tables] for s in stack_tables(tables, "auto")
    ] == [["table_0", "table_2"], ["table_1"]]


def test_the_order_of_the_tables_does_not_matter() -> None:
    tables = _tables([(3, 4), (5, 8), (2, 4), (7, 8)])
    assert stack_tables(tables[::-1], "auto") == stack_tables(tables, "auto")


def test_only_what_is_named_is_stacked() -> None:
    tables = _tables([(3, 4), (5, 4), (2, 4), (7, 4)])
    stacks = stack_tables(tables, [["table_3", "table_0"], ["table_1"]])
    assert [[t.name for t in s.tables] for s in stacks] == [
        ["table_0", "table_3"],
        ["table_1"],
        ["table_2"],
    ]
    assert len(stack_tables(tables, ["table_0", "table_1"])) == 3
    assert len(stack_tables(tables, None)) == 4


@pytest.mark.parametrize(
    ("stacking", "message"),
    [
        (["table_0", "nothing"], "'nothing', which no feature uses"),
        (["table_0", "table_0"], "'table_0' twice"),
        ([["table_0"], ["table_0"]], "'table_0' twice"),
        (["table_0", "table_1"], "same embedding_dim.*table_0: 4, table_1: 8"),
        ("all", "expected to be \"auto\".*Received: table_stacking='all'"),
        ([["table_0"], "table_1"], "expected to be"),
        ([[]], "expected to be"),
        (3, "expected to be"),
    ],
)
def test_what_cannot_be_stacked_is_refused(
    stacking: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        stack_tables(_tables([(3, 4), (5, 8)]), stacking)  # type: ignore[arg-type]


def _dynamic(name: str, rows: int, kind: str = "admission=None") -> TableSize:
    return TableSize(name, rows, 4, kind=kind)


def test_tables_by_id_are_stacked_by_their_kinds() -> None:
    tables = [
        _dynamic("a", 3),
        _dynamic("b", 3, "admission=2"),
        _dynamic("c", 5),
        *_tables([(3, 4), (5, 4)]),
    ]
    stacks = stack_tables(tables, "auto")
    assert {s.name: [t.name for t in s.tables] for s in stacks} == {
        "stack_0_width_4": ["table_0", "table_1"],
        "dynamic_stack_0_width_4": ["a", "c"],
        "b": ["b"],
    }
    for stacking in (["a", "b"], [["c", "table_0"]]):
        with pytest.raises(ValueError, match="equal `admission`"):
            stack_tables(tables, stacking)


def test_no_stack_of_tables_by_id_is_too_large() -> None:
    half = MOST_ROWS // 2
    for rows, expected in (
        ((half, half, half, half, half), ["ab", "cd", "e"]),
        ((1, 2 * half - 1, 2 * half - 1, 1), ["ab", "cd"]),
        ((2, 2 * half - 1, 1, 2 * half), ["a", "bc", "d"]),
        ((3 * half, half), ["a", "b"]),
    ):
        tables = [
            _dynamic(name, num)
            for name, num in zip("abcde", rows, strict=False)
        ]
        stacks = stack_tables(tables, "auto")
        found = ["".join(t.name for t in each.tables) for each in stacks]
        assert found == expected
    tables = [_dynamic(name, half) for name in "abc"]
    with pytest.raises(ValueError, match="up to 500,000,000 rows"):
        stack_tables(tables, [["a", "b", "c"]])


def test_a_table_cannot_have_the_name_of_a_stack() -> None:
    tables = _tables([(3, 4), (5, 4)])
    tables.append(TableSize("stack_1_width_4", 3, 8))
    with pytest.raises(ValueError, match="name of a stack"):
        stack_tables(tables, "auto")


def test_a_table_that_is_elsewhere_has_no_rows_here() -> None:
    (stack, _) = stack_tables(_tables([(3, 4), (5, 8)]), "auto")
    with pytest.raises(KeyError, match="table_1"):
        stack.range_of("table_1")
