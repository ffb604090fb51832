"""Private TensorFlow API: captures of graph functions.

TensorFlow has no public way to find the resources that a function captures,
their devices, and the lookups of those that each call looks up.
"""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph


def homes_of_captures(graph: FuncGraph) -> dict[int, str]:
    """Returns devices of captured resources, by position among the arguments.

    Contains only resources whose device is known.
    """
    devices = homes_of_tensors(graph)
    return {
        place: devices[id(tensor)]
        for place, tensor in enumerate(graph.inputs)
        if tensor.dtype == tf.resource and devices.get(id(tensor))
    }


def homes_of_tensors(graph: FuncGraph) -> dict[int, str]:
    """Returns devices of captured tensors, by the `id` of their placeholders.

    Args:
        graph: A function, which may still be being traced.

    Returns:
        The devices; empty where a device is not known.
    """
    captures = graph.function_captures
    devices: dict[int, str] = {}
    for key, internal in captures.by_val_internal.items():
        devices[id(internal)] = getattr(
            captures.by_val_external[key], "device", ""
        )
    for key, internal in captures.by_ref_internal.items():
        devices[id(internal)] = getattr(
            captures.by_ref_tracetype[key], "device", ""
        )
    return devices


def values_of(graph: FuncGraph) -> list[tf.Tensor]:
    """Returns the eager tensors that a function has captured by value."""
    return [
        tensor
        for tensor in graph.function_captures.by_val_external.values()
        if hasattr(tensor, "numpy")
    ]


def values_by_argument(graph: FuncGraph) -> dict[int, Any]:
    """Returns the captures of a function, by the ids of their arguments.

    Returns:
        The eager tensor of each capture by value; None for every other one.
    """
    captures = graph.function_captures
    found: dict[int, Any] = {
        id(internal): None for internal in captures.by_ref_internal.values()
    }
    for key, internal in captures.by_val_internal.items():
        external = captures.by_val_external[key]
        found[id(internal)] = external if hasattr(external, "numpy") else None
    return found


def look_ups_of_handles(
    graph: FuncGraph,
) -> dict[int, tuple[str, Callable[[], tf.Tensor]]]:
    """Returns lookups of handles by each call, by position among arguments.

    Contains only resources whose device is known, each with that device and the
    function that looks the handle up.
    """
    captures = graph.function_captures
    places = {id(tensor): place for place, tensor in enumerate(graph.inputs)}
    found: dict[int, tuple[str, Callable[[], tf.Tensor]]] = {}
    for key, internal in captures.by_ref_internal.items():
        device = getattr(captures.by_ref_tracetype[key], "device", "")
        if internal.dtype == tf.resource and device:
            look_up = captures.by_ref_external[key]
            found[places[id(internal)]] = (
                device,
                functools.partial(_only_one, look_up),
            )
    return found


def variables(graph: FuncGraph) -> dict[int, Any]:
    """Returns the variables of a function's arguments, by the arguments' ids.

    Contains only variables that still exist.
    """
    captures = graph.function_captures
    found = {}
    # Not FuncGraph.variables, which raises if one no longer exists; nor
    # `handle`, which has side effects for some variables.
    known = [reference() for reference in graph._weak_variables]
    by_handle = {
        id(one._handle): one for one in known if hasattr(one, "_handle")
    }
    for key, internal in captures.by_val_internal.items():
        owner = by_handle.get(id(captures.by_val_external[key]))
        if owner is not None:
            found[id(internal)] = owner
    for key, internal in captures.by_ref_internal.items():
        look_up = getattr(captures.by_ref_tracetype[key], "owner", None)
        variable = None if look_up is None else look_up()
        if variable is not None:
            found[id(internal)] = variable
    return found


def _only_one(look_up: Callable[[], Sequence[tf.Tensor]]) -> tf.Tensor:
    (tensor,) = look_up()
    return tensor


def parameter_servers(graph: FuncGraph) -> frozenset[int]:
    """Returns the indices of the ps that hold a function's captures."""
    specs = map(tf.DeviceSpec.from_string, homes_of_captures(graph).values())
    return frozenset(spec.task or 0 for spec in specs if spec.job == "ps")


def copy(
    old: FuncGraph, new: FuncGraph, counterparts: Mapping[int, tf.Tensor]
) -> None:
    """Makes a function capture the same as another.

    Args:
        old: The other function.
        new: The function; it captures nothing yet.
        counterparts: Arguments of the new function, by the ids of those of the
            other. Captures without a counterpart are skipped.
    """
    theirs, ours = old.function_captures, new.function_captures
    for kind, is_by_ref in (("by_val", False), ("by_ref", True)):
        externals = getattr(theirs, f"{kind}_external")
        types = getattr(theirs, f"{kind}_tracetype")
        for key, internal in getattr(theirs, f"{kind}_internal").items():
            if id(internal) in counterparts:
                ours.add_or_replace(
                    key,
                    externals[key],
                    counterparts[id(internal)],
                    types[key],
                    is_by_ref=is_by_ref,
                )
