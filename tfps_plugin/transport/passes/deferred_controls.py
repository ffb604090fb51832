"""Order of effects behind operations that do not wait themselves.

In a function as it was traced, an operation may be the only one that waits for
another, on behalf of all that read its result: TensorFlow gives a control input
to the first operation under `tf.control_dependencies`, often a constant, and
not to those that read it. Here every place has its own copy of a constant, and
what a called function computes does not wait for what the call waits for. So
operations with effects that depend on them wait instead.
"""

import dataclasses

from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport.flat_function import FlatFunction


def hand_on(function: FlatFunction) -> FlatFunction:
    """Returns the function, with no deferred controls left.

    Constants lose their control inputs. Operations with effects get those that
    the operations before them have deferred, and the end of the function gets
    those that nothing has waited for. Nothing waits twice: what an operation
    already runs after, it gets no control input for.

    Args:
        function: Its operations are not changed.
    """
    # Sets of operations, as bits: those that each operation runs after, and
    # those that effects that depend on it have to wait for.
    after: list[int] = []
    deferred: list[int] = []
    operations = []
    for number, flat in enumerate(function.operations):
        controls = flat.controls
        owed = _bits(flat.deferred)
        if flat.operation.type == "Const" and number >= function.num_arguments:
            owed |= _bits(controls)
            for one in controls:
                owed |= deferred[one]
            controls = ()
        ran = 0
        for one in {*(output.node for output in flat.inputs), *controls}:
            ran |= after[one] | (1 << one)
            owed |= deferred[one]
        owed &= ~ran
        if owed and compat.is_stateful(flat.operation):
            missing = _last_of(owed, after)
            controls = (*controls, *missing)
            ran |= owed
            for one in missing:
                ran |= after[one]
            owed = 0
        after.append(ran)
        deferred.append(owed)
        operations.append(
            dataclasses.replace(flat, controls=controls, deferred=())
        )
    ends = dict.fromkeys(function.controls)
    for one in function.controls:
        ends.update(dict.fromkeys(_last_of(deferred[one], after)))
    return dataclasses.replace(
        function, operations=operations, controls=tuple(ends)
    )


def _bits(numbers: tuple[int, ...]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def _last_of(bits: int, after: list[int]) -> list[int]:
    """Returns the operations of a set that no other one of it runs after."""
    last = []
    while bits:
        number = bits.bit_length() - 1
        last.append(number)
        bits &= ~(after[number] | (1 << number))
    return last
