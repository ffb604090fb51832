"""Counts the tensors that cross between tasks in one call of a function.

TensorFlow cuts a function by device and sends every tensor that is produced on
one task and used on another: once to each such task, however often it is used
there. That is what is counted: distinct pairs of a tensor and a task that uses
it and did not make it. Functions that are called inside are walked too, as if
they stood in the place of their call.

An operation runs on the task that its device names; without one, on that of
the variable that it reads or writes, and else on the worker. What leads
neither to a result nor to a side effect is not counted, as it is pruned.
Handles of variables are not counted: they travel with the call. Bodies of
loops and branches are counted once.

The optimizer of TensorFlow's graphs runs later, and may fold some constants:
the figures serve to compare, to a few in a hundred.
"""

import dataclasses
from typing import Any

import tensorflow as tf

_WORKER = "worker"


@dataclasses.dataclass(frozen=True)
class _Value:
    """A tensor: where it was made, under which name, and whether it counts."""

    name: str
    task: str
    handle: bool = False


def count(function: Any) -> dict[str, int]:
    """Counts what crosses in one call of a concrete function.

    Args:
        function: A `ConcreteFunction`, traced on the chief.

    Returns:
        How many tensors go to the worker ("rows and values"), how many to the
        ps ("ids and gradients"), and how many there are of both ("all").
    """
    library = {
        each.signature.name: each
        for each in function.graph.as_graph_def().library.function
    }
    definition = function.function_def
    captured = list(function.captured_inputs)
    arguments = definition.signature.input_arg
    own = len(arguments) - len(captured)
    values = [_Value(f"input_{i}", _WORKER) for i in range(own)] + [
        _Value(
            f"captured_{i}",
            _task(getattr(tensor, "device", "")) or _WORKER,
            tensor.dtype == tf.resource,
        )
        for i, tensor in enumerate(captured)
    ]
    crossings: set[tuple[str, str]] = set()
    _walk(definition, library, values, "", _WORKER, crossings)
    to_worker = sum(task == _WORKER for _, task in crossings)
    return {
        "rows and values": to_worker,
        "ids and gradients": len(crossings) - to_worker,
        "all": len(crossings),
    }


def _walk(
    definition: Any,
    library: dict[str, Any],
    arguments: list[_Value],
    path: str,
    caller: str,
    crossings: set[tuple[str, str]],
) -> list[_Value]:
    """Adds what crosses in one function; returns what it returns."""
    known = {
        argument.name: value
        for argument, value in zip(
            definition.signature.input_arg, arguments, strict=True
        )
    }
    nodes = {node.name: node for node in definition.node_def}
    tasks: dict[str, str] = {}
    results: dict[str, list[_Value]] = {}

    def value(name: str) -> _Value:
        if name in known:
            return known[name]
        node, _, rest = name.partition(":")
        visit(node)
        if node in results:  # a call: its outputs are one list
            return results[node][int(rest.rsplit(":", 1)[-1])]
        return _Value(f"{path}{name}", tasks[node])

    def visit(name: str) -> None:
        if name in tasks or name not in nodes:
            return
        node = nodes[name]
        tasks[name] = caller  # for cycles, of which there are none
        inputs = [value(i) for i in node.input if not i.startswith("^")]
        for control in node.input:
            if control.startswith("^"):
                visit(control[1:])
        handles = [each.task for each in inputs if each.handle]
        task = _task(node.device) or (handles or [caller])[0]
        tasks[name] = task
        called = [
            library[attribute.func.name]
            for key, attribute in sorted(node.attr.items())
            if attribute.func.name in library and not key.startswith("_")
        ]
        if called and node.op.endswith("PartitionedCall"):
            results[name] = _walk(
                called[0], library, inputs, f"{path}{name}/", task, crossings
            )
            return
        for each in called:
            here = [dataclasses.replace(i, task=task) for i in inputs]
            needed = here[-len(each.signature.input_arg) :]
            _walk(each, library, needed, f"{path}{name}/", task, crossings)
        for each in inputs:
            if each.task != task and not each.handle:
                crossings.add((each.name, task))

    for name in definition.control_ret.values():
        visit(name)
    return [
        value(definition.ret[output.name])
        for output in definition.signature.output_arg
    ]


def _task(device: str) -> str | None:
    """`ps 1` of `/job:ps/replica:0/task:1/device:CPU:0`."""
    spec = tf.DeviceSpec.from_string(device or "")
    if spec.job is None:
        return None
    return f"ps {spec.task}" if spec.job == "ps" else _WORKER
