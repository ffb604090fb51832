"""Checks that a rewritten function can run.

TensorFlow would find an error when it runs the function for the first time, and
the step would fail. These checks find errors of a rewriting at once. The
function then stays as it was traced, which is slower but correct.
"""

import graphlib
from collections.abc import Collection

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport import places


def check(graph: compat.FuncGraph, old: compat.FuncGraph) -> None:
    """Checks a function against the one that it replaces.

    Raises:
        InternalError: If operations of the new function wait for each other;
            or if it returns tensors of other types or shapes than the old one.
    """
    _check_order(graph)
    _check_results(graph, old)


def check_device(
    operation: tf.Operation, device: str, homes: Collection[str]
) -> None:
    """Checks the device of an operation that the program has not placed.

    Args:
        operation: The operation as it was traced.
        device: The device that was chosen for it.
        homes: The devices of the resources that it works on.

    Raises:
        InternalError: If a resource is on another task than the device.
    """
    wanted = {places.place(home) for home in homes}
    if wanted - {places.place(device)}:
        raise errors.InternalError(
            f"{operation.name!r} works on resources of several tasks. "
            f"Expected: resources of {places.place(device) or 'the worker'}. "
            f"Received: resources={sorted(homes)}. Place it yourself, by "
            "tf.device."
        )


def _check_order(graph: compat.FuncGraph) -> None:
    operations = graph.get_operations()
    numbers = {operation: n for n, operation in enumerate(operations)}
    needs = {
        n: [
            numbers[before]
            for before in (
                *(tensor.op for tensor in operation.inputs),
                *operation.control_inputs,
            )
        ]
        for n, operation in enumerate(operations)
    }
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        # Each needs the next; the first is listed at both ends.
        names = [operations[number].name for number in error.args[1][:0:-1]]
        raise errors.InternalError(
            f"Operations of {graph.name!r}, rewritten to send less, wait for "
            f"each other. Received: operations={names}. Please report this."
        ) from None


def _check_results(graph: compat.FuncGraph, old: compat.FuncGraph) -> None:
    ours = [(tensor.dtype, tensor.shape) for tensor in graph.outputs]
    theirs = [(tensor.dtype, tensor.shape) for tensor in old.outputs]
    if len(ours) != len(theirs) or any(
        our_dtype != their_dtype
        or not our_shape.is_compatible_with(their_shape)
        for (our_dtype, our_shape), (their_dtype, their_shape) in zip(
            ours, theirs, strict=True
        )
    ):
        raise errors.InternalError(
            f"{graph.name!r}, rewritten to send less, does not return what "
            f"{old.name!r} does. Expected: {theirs}. Received: {ours}. Please "
            "report this."
        )
