"""The checks of many tables' ids as one.

Each lookup checks on the worker that the ids are inside of the table
(`variables.row_lookup.require_inside`), by five operations. A step of 26 tables
needs one check: it says of which table the ids are wrong.

Shape legend: T tables.
"""

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.flat_function import constant_scalar
from tfps_plugin.transport.passes import inlining
from tfps_plugin.transport.passes import reordering
from tfps_plugin.transport.waves import Output


class _Check(NamedTuple):
    """Whether `lowest <= smallest` and `largest <= highest`.

    Attributes:
        number: Of the assertion.
        smallest: Of the ids.
        largest: Of the ids.
        lowest: That the table has.
        highest: That the table has.
        texts: What the error says before and behind the two.
    """

    number: int
    smallest: Output
    largest: Output
    lowest: int
    highest: int
    texts: tuple[bytes, bytes, bytes]


def merge(function: FlatFunction, waves: Sequence[int]) -> FlatFunction:
    """Merges checks that can be made at the same time.

    Args:
        function: Its operations are not changed.
        waves: Of each operation: checks of other waves would wait for another
            message.

    Returns:
        The function, with one check in the place of several.
    """
    checks = {
        number: check
        for number in range(function.num_arguments, len(waves))
        if (check := _check(function.operations, number)) is not None
    }
    depths = _depths(function.operations, checks)
    groups: dict[Hashable, list[_Check]] = collections.defaultdict(list)
    for number, check in checks.items():
        flat = function.operations[number]
        dtype = flat.operation.inputs[2].dtype
        # A step does not wait for the ids of the next one in its round.
        key = (waves[number], depths[number], flat.device, dtype, flat.step)
        # The texts behind the first are the same for all.
        groups[key, check.texts[1:]].append(check)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return function
    operations, gates = _without_gates(function, checks)
    function = dataclasses.replace(function, operations=operations)
    return _with_one_each(function, several, checks, gates)


def _check(operations: Sequence[FlatOperation], number: int) -> _Check | None:
    """What an operation checks, if it is a check of ids."""
    flat = operations[number]
    if flat.operation.type != "Assert" or len(flat.inputs) != 6:
        return None
    condition, before, smallest, between, largest, behind = flat.inputs
    texts = tuple(
        constant_scalar(operations, o) for o in (before, between, behind)
    )
    both = operations[condition.node]
    if both.operation.type != "LogicalAnd" or None in texts:
        return None
    at_least, at_most = (operations[output.node] for output in both.inputs)
    if (
        (at_least.operation.type, at_most.operation.type)
        != ("GreaterEqual", "LessEqual")
        or at_least.inputs[0] != smallest
        or at_most.inputs[0] != largest
    ):
        return None
    lowest = constant_scalar(operations, at_least.inputs[1])
    highest = constant_scalar(operations, at_most.inputs[1])
    if lowest is None or highest is None:
        return None
    return _Check(number, smallest, largest, lowest, highest, texts)


def _depths(
    operations: Sequence[FlatOperation], checks: dict[int, _Check]
) -> list[int]:
    """How many checks, one after the other, each operation waits for.

    That a check is made after another is said of all that may fail; it is not
    counted, nor does it have to be so.
    """
    depths: list[int] = []
    for number, flat in enumerate(operations):
        before = {output.node for output in flat.inputs}
        before.update(_controls(flat, number, checks))
        depth = max((depths[one] for one in before), default=0)
        depths.append(depth + (number in checks))
    return depths


def _controls(
    flat: FlatOperation, number: int, checks: Collection[int]
) -> list[int]:
    """What it runs after; of checks, what is no check."""
    return [
        one
        for one in flat.controls
        if number not in checks or one not in checks
    ]


def _without_gates(
    function: FlatFunction, checks: Collection[int]
) -> tuple[list[FlatOperation], set[int]]:
    """Has who alone reads ids that wait for a check wait for it itself.

    Returns:
        The operations, and the numbers of those that nobody needs any more.
    """
    operations = list(function.operations)
    readers: dict[Output, list[int]] = collections.defaultdict(list)
    for number, flat in enumerate(operations):
        for output in set(flat.inputs):
            readers[output].append(number)
    needed = {output.node for output in function.outputs}
    needed.update(one for flat in operations for one in flat.controls)
    gates = set()
    for number in range(function.num_arguments, len(operations)):
        # Its input may have been a gate.
        gate = operations[number]
        read_by = readers[Output(number, 0)]
        if (
            gate.operation.type != "Identity"
            or not gate.controls
            or number in needed
            or len(read_by) != 1
            or operations[read_by[0]].device != gate.device
            or not set(gate.controls) <= set(checks)
        ):
            continue
        reader = operations[read_by[0]]
        operations[read_by[0]] = dataclasses.replace(
            reader,
            inputs=tuple(
                gate.inputs[0] if output.node == number else output
                for output in reader.inputs
            ),
            controls=(*reader.controls, *gate.controls),
        )
        gates.add(number)
    return operations, gates


def _with_one_each(
    function: FlatFunction,
    groups: Sequence[Sequence[_Check]],
    checks: Collection[int],
    unneeded: Collection[int],
) -> FlatFunction:
    """The function, with one check for each group."""
    operations = list(function.operations)
    merged: dict[int, int] = {}
    turns: dict[int, int] = {}
    for group in groups:
        first = operations[group[0].number]
        first_new = len(operations)
        after = [
            one
            for check in group
            for one in operations[check.number].controls
            if one not in checks
        ]
        inlining.splice(
            operations,
            _graph(group, first.operation.inputs[2].dtype),
            [check.smallest for check in group]
            + [check.largest for check in group],
            first.device,
            tuple(dict.fromkeys(after)),
        )
        new = range(first_new, len(operations))
        turns.update(dict.fromkeys(new, group[0].number))
        (assertion,) = (
            number
            for number in range(len(operations) - 1, 0, -1)
            if operations[number].operation.graph
            is operations[-1].operation.graph
            and operations[number].operation.type == "Assert"
        )
        merged.update({check.number: assertion for check in group})

    def instead(controls: Sequence[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(merged.get(one, one) for one in controls))

    return reordering.in_order(
        FlatFunction(
            [
                dataclasses.replace(
                    flat, controls=instead(_controls(flat, number, checks))
                )
                for number, flat in enumerate(operations)
            ],
            function.num_arguments,
            function.outputs,
            instead(function.controls),
        ),
        without={*merged, *unneeded},
        turns=turns,
    )


def _graph(group: Sequence[_Check], dtype: tf.DType) -> Any:
    """A function of the smallest ids of all tables, and then the largest."""
    number = len(group)
    _, between, behind = group[0].texts

    @tf.autograph.experimental.do_not_convert
    def check(*ids: tf.Tensor) -> None:
        smallest_T, largest_T = tf.stack(ids[:number]), tf.stack(ids[number:])
        is_inside_T = (
            smallest_T >= tf.constant([c.lowest for c in group], dtype)
        ) & (largest_T <= tf.constant([c.highest for c in group], dtype))
        # The first that is not.
        table = tf.argmin(tf.cast(is_inside_T, tf.int32))
        tf.raw_ops.Assert(
            condition=tf.reduce_all(is_inside_T),
            data=[
                tf.gather([c.texts[0] for c in group], table),
                tf.gather(smallest_T, table),
                tf.constant(between),
                tf.gather(largest_T, table),
                tf.constant(behind),
            ],
        )

    specs = [tf.TensorSpec([], dtype)] * (2 * number)
    return tf.function(check).get_concrete_function(*specs).graph
