"""Tests that random programs do the same after rewriting.

A program is a few lines, each of which computes something at one of three
places, reads or changes a variable, or runs a block of lines in a loop, in a
branch or in a function. The places are this process, under three of its names.
So programs run here, but everything that would travel between tasks is packed.
"""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.transport import fusion
from tfps_plugin.transport import places
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.sharding.layout import RowLayout

# Names of one device; `places`, as patched below, takes each for a task.
_PS = (
    "/job:localhost/replica:0/task:0/device:CPU:0",
    "/job:localhost/replica:0/device:CPU:0",
)
_ROWS = 6
_WIDTH = 2


@dataclasses.dataclass(frozen=True)
class _Compute:
    """Computes a value from two others, at a place."""

    place: int
    kind: int
    left: int
    right: int


@dataclasses.dataclass(frozen=True)
class _Read:
    """Reads a variable."""

    variable: int


@dataclasses.dataclass(frozen=True)
class _Change:
    """Changes a variable by a value."""

    variable: int
    value: int
    assigns: bool


@dataclasses.dataclass(frozen=True)
class _LookUp:
    """Looks up rows of the table, by ids made of a value."""

    value: int


@dataclasses.dataclass(frozen=True)
class _Run:
    """Runs a block of lines, in a loop, a branch, or a function."""

    how: str
    value: int
    block: tuple[Any, ...]
    other: tuple[Any, ...]


_NUMBER = st.integers(0, 9)
_LINE = st.one_of(
    st.builds(_Compute, st.integers(0, 2), st.integers(0, 3), _NUMBER, _NUMBER),
    st.builds(_Read, st.integers(0, 2)),
    st.builds(_Change, st.integers(0, 2), _NUMBER, st.booleans()),
    st.builds(_LookUp, _NUMBER),
)
_BLOCK = st.recursive(
    st.lists(_LINE, min_size=2, max_size=6).map(tuple),
    lambda blocks: st.lists(
        st.one_of(
            _LINE,
            st.builds(
                _Run,
                st.sampled_from(["loop", "branch", "one branch", "function"]),
                _NUMBER,
                blocks,
                blocks,
            ),
        ),
        min_size=3,
        max_size=6,
    ).map(tuple),
    max_leaves=4,
)


# The result of the inner loop travels to the task of the loop's handle.
_HANDLES_IN_A_LOOP = (
    _Run("loop", 0, (_Read(0), _LookUp(0)), ()),
    _Compute(1, 0, 1, 1),
    _Change(0, 2, False),
    _Run("one branch", 3, (_LookUp(0),), ()),
    _Compute(2, 0, 3, 4),
)


class _Machine:
    """Machine with the variables that programs use."""

    def __init__(self) -> None:
        self.variables = [
            RemoteVariable(
                device, tf.TensorShape([_WIDTH]), tf.float32, f"variable_{n}"
            )
            for n, device in enumerate([*_PS, _PS[0]])
        ]
        layout = RowLayout.even(_ROWS, 2)
        shards = [
            RemoteVariable(
                device,
                tf.TensorShape([len(layout.rows(n)), _WIDTH]),
                tf.float32,
                f"table/part_{n}",
            )
            for n, device in enumerate(_PS)
        ]
        self.table = ShardedVariable(shards, layout, "table")
        self.reset()

    def reset(self) -> None:
        for number, variable in enumerate(self.variables):
            variable.assign(tf.fill([_WIDTH], 0.25 * (number + 1)))
        numbers = tf.range(_ROWS * _WIDTH, dtype=tf.float32)
        self.table.assign(tf.reshape(numbers, [_ROWS, _WIDTH]) / 16)

    def state(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.variables]

    def run(
        self, lines: Sequence[Any], values: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Runs lines; each sees the values, and those of earlier lines."""
        values = list(values)

        def value(number: int) -> tf.Tensor:
            return values[number % len(values)]

        for line in lines:
            if isinstance(line, _Compute):
                left, right = value(line.left), value(line.right)
                with tf.device(["", *_PS][line.place]):
                    values.append(_compute(line.kind, left, right))
            elif isinstance(line, _Read):
                values.append(self.variables[line.variable] * 0.5)
            elif isinstance(line, _Change):
                variable = self.variables[line.variable]
                if line.assigns:
                    variable.assign(tf.tanh(value(line.value)))
                else:
                    variable.assign_add(0.25 * value(line.value))
            elif isinstance(line, _LookUp):
                ids = tf.cast(tf.abs(value(line.value)) * 8.0, tf.int32)
                rows = row_lookup.look_up(self.table, ids % _ROWS)
                values.append(tf.reduce_mean(rows, 0))
            else:
                values.append(self._run(line, value(line.value), values[0]))
        return tf.add_n(values) / float(len(values))

    def _run(self, line: _Run, first: tf.Tensor, second: tf.Tensor) -> Any:
        if line.how == "loop":
            return tf.while_loop(
                lambda i, _: i < 3,
                lambda i, x: (i + 1, self.run(line.block, [x, second])),
                (tf.constant(0), first),
                parallel_iterations=1,
            )[1]
        if line.how == "function":
            called = tf.function(lambda x: self.run(line.block, [x]))
            return called(called(first))
        return tf.cond(
            tf.reduce_sum(first) > 0.25,
            lambda: self.run(line.block, [first, second]),
            lambda: (
                tf.zeros([_WIDTH])
                if line.how == "one branch"
                else self.run(line.other, [first])
            ),
        )


def _compute(kind: int, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    if kind == 0:
        return left * 0.5 + tf.fill([_WIDTH], 0.125)
    if kind == 1:
        return tf.tanh(left + right)
    if kind == 2:
        return left * right
    # Their number is not known before the program runs.
    chosen = tf.boolean_mask(left, left > right)
    return left - 0.5 * tf.reduce_sum(chosen)


@pytest.fixture(scope="module")
def machine() -> _Machine:
    """Returns a shared machine: making variables takes longer than running."""
    return _Machine()


@pytest.fixture(autouse=True)
def _each_name_is_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(device: str) -> str:
        if places.job(device) is None:
            return places.HERE
        return device.rpartition("/device:")[0]

    monkeypatch.setattr(places, "place", place)


# Each example traces a program, rewrites it and runs both.
@pytest.mark.timeout(180)
@hypothesis.settings(
    max_examples=12,
    deadline=None,
    # No shrinking: each attempt takes a second, and there would be many.
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
@hypothesis.example(lines=_HANDLES_IN_A_LOOP, of_steps=True)
@hypothesis.given(lines=_BLOCK, of_steps=st.booleans())
def test_a_program_does_what_it_did(
    machine: _Machine, lines: tuple[Any, ...], of_steps: bool
) -> None:
    @tf.autograph.experimental.do_not_convert
    def program(x: tf.Tensor) -> tf.Tensor:
        if not of_steps:
            return machine.run(lines, [x])
        # Run it several times, as a worker runs steps.
        step = tf.function(lambda x: machine.run(lines, [x]), autograph=False)
        return tf.while_loop(
            lambda i, _: i < 2,
            lambda i, x: (i + 1, step(step(x))),
            (tf.constant(0), x),
            parallel_iterations=1,
        )[1]

    with tf.device(None):
        function = tf.function(program).get_concrete_function(
            tf.TensorSpec([_WIDTH])
        )
    warnings = _Warnings()
    logger = logging.getLogger("tfps_plugin.transport")
    logger.addHandler(warnings)
    try:
        fused = fusion.fuse(function)
    finally:
        logger.removeHandler(warnings)
    assert not warnings.texts
    results = []
    for one in (function, fused):
        machine.reset()
        results.append([one(tf.constant([0.5, -0.25])), *machine.state()])
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


class _Warnings(logging.Handler):
    """Handler that collects warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))
