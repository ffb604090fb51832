import warnings

import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup import dense_reads


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ShardedVariable:
    monkeypatch.setattr(dense_reads, "_LARGE_BYTES", 40 * 4 - 1)
    table = testing.sharded_variable(tf.ones([10, 4]), 2)
    table.path = "items/embeddings"
    return table


def _trace(table: ShardedVariable) -> None:
    tf.function(lambda: table * 2.0).get_concrete_function()


def test_a_step_that_reads_a_large_table_is_told_once(
    table: ShardedVariable,
) -> None:
    with pytest.warns(UserWarning, match=r"items/embeddings.*tf\.gather"):
        _trace(table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _trace(table)


def test_it_names_the_line_of_the_users_program(table: ShardedVariable) -> None:
    program = "def step(table):\n\n    return table * 2.0\n"
    names: dict = {}
    exec(compile(program, "/home/me/train.py", "exec"), names)
    with pytest.warns(UserWarning, match=r"/home/me/train\.py:3\.") as caught:
        tf.function(
            lambda: names["step"](table), autograph=False
        ).get_concrete_function()
    assert (caught[0].filename, caught[0].lineno) == ("/home/me/train.py", 3)


@pytest.mark.filterwarnings("error")
def test_other_reads_are_not_worth_a_word(table: ShardedVariable) -> None:
    table * 2.0
    table.numpy()
    tf.function(lambda: tf.gather(table, [1]) + table[2:3])()
    _trace(testing.sharded_variable(tf.ones([9, 4]), 2))
