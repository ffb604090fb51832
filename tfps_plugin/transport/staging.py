"""Resource handles that a function reads on their parameter servers.

`variables.handle_areas` explains why the function has no arguments for them.
"""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport import places
from tfps_plugin.transport.waves import Output
from tfps_plugin.variables.kinds.handle_areas import HandleArea
from tfps_plugin.variables.kinds.handle_areas import Place
from tfps_plugin.variables.kinds.handle_areas import StagedHandles


class StagedHandle(NamedTuple):
    """The place of a handle.

    Attributes:
        area: The area on its parameter server.
        number: Number of the handle in the area.
    """

    area: HandleArea
    number: int


def of_captures(
    graph: compat.FuncGraph,
) -> tuple[StagedHandles, dict[int, StagedHandle]]:
    """Returns areas for the handles that a function captures.

    Returns:
        The areas, still empty; and the place of each handle, by the number of
        its argument. Handles on an accelerator have no place: TensorFlow keeps
        handles in the memory of the host.
    """
    arguments: dict[Place, list[int]] = collections.defaultdict(list)
    look_ups: dict[Place, list[Callable[[], tf.Tensor]]] = (
        collections.defaultdict(list)
    )
    for argument, (device, look_up) in tensorflow_captures.look_ups_of_handles(
        graph
    ).items():
        if places.is_on_cpu(device):
            shape = graph.inputs[argument].shape
            place = Place(device, tuple(shape.as_list()))
            arguments[place].append(argument)
            look_ups[place].append(look_up)
    handles = StagedHandles(look_ups)
    return handles, {
        argument: StagedHandle(area, number)
        for place, area in handles.areas.items()
        for number, argument in enumerate(arguments[place])
    }


def take(
    staged: Mapping[Output, StagedHandle], graph: compat.FuncGraph
) -> dict[Output, tf.Tensor]:
    """Takes handles from their areas, in a function that is being built.

    Args:
        staged: Places of handles, by the arguments that they replace.
        graph: Graph of the function that has these arguments.

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
    """A function whose areas get the current handles before each call.

    Attributes:
        __wrapped__: The function.

    Threading: called from any thread.
    """

    def __init__(
        self,
        function: tf.types.experimental.ConcreteFunction,
        handles: StagedHandles,
    ) -> None:
        """Wraps a function.

        Args:
            function: A function that takes handles from areas.
            handles: Those areas.
        """
        self.__wrapped__ = function
        self._handles = handles

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        self._handles.stage()
        return self.__wrapped__(*args, **kwargs)
