"""A list of operations in another order."""

import dataclasses
import heapq
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.flat_function import Renumbering


def in_turn(
    operations: Sequence[FlatOperation], turn: Callable[[int], Any]
) -> Iterator[int]:
    """Their numbers, each after those that it needs.

    Args:
        operations: In any order.
        turn: From a number to what the first of those that need nothing more
            is found by.

    Raises:
        InternalError: If some need each other.
    """
    readers: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for number, flat in enumerate(operations):
        before = {output.node for output in flat.inputs}
        before.update(flat.controls)
        missing[number] = len(before)
        for one in before:
            readers[one].append(number)
    ready = [(turn(n), n) for n, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    num_left = len(operations)
    while ready:
        _, number = heapq.heappop(ready)
        num_left -= 1
        yield number
        for reader in readers[number]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (turn(reader), reader))
    if num_left:
        raise errors.InternalError(
            f"{num_left} operations of a step wait for each other. Please "
            "report this."
        )


def in_order(
    function: FlatFunction,
    without: Collection[int] = (),
    turns: Mapping[int, int] | None = None,
) -> FlatFunction:
    """The function, with its operations each after those that it needs.

    Args:
        function: Its arguments are in front; what comes behind is in any
            order, and stays in it as far as that is possible.
        without: Operations that are left out, as nothing needs them.
        turns: Operations whose turn is that of another. Those that stand for
            one have its own: what needs them would come late otherwise, behind
            locks that are to be taken last (`common_subexpressions`).
    """
    new = Renumbering()
    turns = turns or {}
    for number in in_turn(function.operations, lambda n: turns.get(n, n)):
        if number in without:
            continue
        flat = function.operations[number]
        new.keep(
            number,
            dataclasses.replace(
                flat,
                inputs=new.outputs(flat.inputs),
                controls=new.controls(flat.controls),
            ),
        )
    return FlatFunction(
        new.kept,
        function.num_arguments,
        new.outputs(function.outputs),
        new.controls(function.controls),
    )
