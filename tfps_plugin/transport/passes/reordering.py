"""Topological sorts of operations."""

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
    """Yields the numbers of operations in topological order.

    Args:
        operations: Operations in any order.
        turn: Maps a number to its priority. Of the operations that are ready,
            the one with the lowest comes first.

    Raises:
        InternalError: If the operations have a cycle.
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
    """Returns the function with its operations in topological order.

    Args:
        function: Its arguments come first. The other operations may be in any
            order, and keep it as far as possible.
        without: Operations that are left out because nothing needs them.
        turns: Maps operations to those whose turn they take. An operation that
            replaces another takes its turn. Otherwise it would come late,
            after locks that should come last (`common_subexpressions`).
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
