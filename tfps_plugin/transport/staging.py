"""Handles that a function takes from their parameter servers.

See `variables.handle_areas` for why it is not given them.
"""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat import tensorflow_captures
from tfps_plugin._compat import tensorflow_graphs as compat
from tfps_plugin.transport import places
from tfps_plugin.transport.waves import Output
from tfps_plugin.variables.kinds.handle_areas import HandleArea
from tfps_plugin.variables.kinds.handle_areas import StagedHandles


class StagedHandle(NamedTuple):
    """Where a handle is.

    Attributes:
        area: Of its parameter server.
        number: Of the handle, in the area.
    """

    area: HandleArea
    number: int


def of_captures(
    graph: compat.FuncGraph,
) -> tuple[StagedHandles, dict[int, StagedHandle]]:
    """Areas for the handles that a function captures.

    Args:
        graph: Of the function.

    Returns:
        The areas, with nothing in them; and which handles are to be where, by
        their places among the arguments. A handle on an accelerator has none:
        TensorFlow keeps handles in the memory of the host.
    """
    arguments: dict[str, list[int]] = collections.defaultdict(list)
    look_ups: dict[str, list[Callable[[], tf.Tensor]]] = (
        collections.defaultdict(list)
    )
    for argument, (device, look_up) in tensorflow_captures.look_ups_of_handles(
        graph
    ).items():
        if places.is_on_cpu(device):
            arguments[device].append(argument)
            look_ups[device].append(look_up)
    handles = StagedHandles(look_ups)
    return handles, {
        argument: StagedHandle(area, number)
        for device, area in handles.areas.items()
        for number, argument in enumerate(arguments[device])
    }


def take(
    staged: Mapping[Output, StagedHandle], graph: compat.FuncGraph
) -> dict[Output, tf.Tensor]:
    """Takes handles, in a function that is being made.

    Args:
        staged: By the arguments that they stand for.
        graph: Of the function that has these arguments.

    Returns:
        The handles, by the arguments.
    """
    taken = {
        area: area.take() for area in {s.area: None for s in staged.values()}
    }
    handles = {
        output: taken[each.area][each.number] for output, each in staged.items()
    }
    arguments = compat.arguments(graph)
    for output, handle in handles.items():
        compat.take_for(handle, arguments[output.node])
    return handles


class WithHandles:
    """A function that finds the handles of now where it looks for them.

    Attributes:
        __wrapped__: The function.

    Threading: called from any thread.
    """

    def __init__(
        self,
        function: tf.types.experimental.ConcreteFunction,
        handles: StagedHandles,
    ) -> None:
        """Puts nothing there yet.

        Args:
            function: Takes handles from areas.
            handles: Those areas.
        """
        self.__wrapped__ = function
        self._handles = handles

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the function."""
        self._handles.stage()
        return self.__wrapped__(*args, **kwargs)
