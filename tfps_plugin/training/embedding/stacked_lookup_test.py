"""NumPy is the truth for rows and gradients."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.embedding import stacked_lookup
from tfps_plugin.training.embedding.stacked_lookup import Request
from tfps_plugin.training.embedding.stacked_lookup import Span
from tfps_plugin.variables import joint_lookup
from tfps_plugin.variables import testing

_ROWS = 9
# Two tables in each stack.
_SPANS = (
    Span("a", "first", range(4)),
    Span("b", "second", range(4, _ROWS)),
    Span("c", "first", range(4)),
)
_IDS = {"a": [3, 0, 0], "b": [4, -1], "c": []}
# The same as rows of the stack.
_EXPECTED = {"a": [3, 0, 0], "b": [8, 8], "c": []}


def _stack(kind: str, value: np.ndarray) -> Any:
    variable = keras.Variable(value)
    if kind == "ours":
        # As the strategy's scope does.
        variable._value = testing.sharded_variable(value, 2)
    return variable


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [
        ("ours", "ours", "ours"),
        ("ours", "plain", "ours"),
        ("plain", "ours"),
        ("plain", "plain"),
        ("ours",),
    ],
)
def test_stacks_on_parameter_servers_are_looked_up_together(
    kinds: tuple[str, ...], traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = []
    original = joint_lookup.look_up_together

    def look_up_together(tables: Any, indices: Any) -> list[tf.Tensor]:
        together.append(len(tables))
        return original(tables, indices)

    monkeypatch.setattr(joint_lookup, "look_up_together", look_up_together)
    values = [
        np.random.default_rng(width).normal(size=(_ROWS, width))
        for width in range(2, 2 + len(kinds))
    ]
    stacks = [_stack(*each) for each in zip(kinds, values, strict=True)]

    def look_up() -> Any:
        with tf.GradientTape() as tape:
            rows = stacked_lookup.look_up(
                [
                    Request(
                        stack,
                        _SPANS,
                        [tf.constant(ids, tf.int32) for ids in _IDS.values()],
                    )
                    for stack in stacks
                ]
            )
            loss = [tf.reduce_sum(each**2) for of in rows for each in of]
        found = tape.gradient(loss, [stack.value for stack in stacks])
        return rows, [tf.convert_to_tensor(each) for each in found]

    rows, gradients = (tf.function(look_up) if traced else look_up)()
    for n, value in enumerate(values):
        expected = np.zeros_like(value)
        for found, numbers in zip(rows[n], _EXPECTED.values(), strict=True):
            ids = np.array(numbers, int)
            np.testing.assert_allclose(found, value[ids], rtol=1e-6)
            np.add.at(expected, ids, 2 * value[ids])
        np.testing.assert_allclose(gradients[n], expected, rtol=1e-6)
    ours = kinds.count("ours")
    assert together == ([ours] if ours > 1 else [])
