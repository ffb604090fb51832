"""Separation of what replicas keep in Python objects while they trace.

Replicas trace the same layers in turn, and a turn may end in the middle of a
layer's call. What a layer keeps there, such as its losses, must not reach
another replica.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.variables.states import combining

# Operations that are the same for all replicas, whoever asks for them first.
_FOR_ALL = ("Const", "Placeholder")


class _Kept(NamedTuple):
    """Losses and tensors of one replica in one layer.

    Attributes:
        losses: Losses that were added.
        loss_ids: Their `id`s, as Keras has them.
        tensors: Attributes that are tensors of the step, by name.
    """

    losses: list[Any]
    loss_ids: set[int]
    tensors: dict[str, Any]


class Separation:
    """Keeps replicas of one step apart.

    The losses that layers collect, and tensors in their attributes, are those
    of the replica that has its turn. Other ways by which a tensor can pass
    from one replica to another are found in the graph.

    Threading: only the thread that traces uses it.
    """

    def __init__(self, graph: Any, *, is_in_round: bool) -> None:
        """Prepares.

        Args:
            graph: The graph that replicas trace.
            is_in_round: Whether the step is one of the local steps of a worker,
                whose weights are arguments.
        """
        self._graph = graph
        self._is_in_round = is_in_round
        self._layers: list[Any] = []
        self._kept: dict[int, list[_Kept]] = {}
        self._at_first: list[_Kept] = []
        self._begin = 0
        # The replica that has made an operation, by the operation's name.
        self._makers: dict[str, int] = {}

    def begin(self) -> None:
        """Begins with the layers as they are, before the first turn."""
        self._layers = keras_compat.living_layers()
        self._at_first = [self._of(layer) for layer in self._layers]
        self._begin = len(self._graph.get_operations())

    @contextlib.contextmanager
    def turn(self, index: int) -> Iterator[None]:
        """Lets one replica see its own; returns to nobody's at the end.

        Args:
            index: Index of the replica.
        """
        before = len(self._graph.get_operations())
        for layer, kept in zip(
            self._layers, self._kept.get(index, self._at_first), strict=True
        ):
            self._put(layer, kept)
        try:
            yield
        finally:
            self._kept[index] = [self._of(layer) for layer in self._layers]
            for operation in self._graph.get_operations()[before:]:
                self._makers[operation.name] = index

    def require_own_tensors(self, arguments: Any) -> None:
        """Refuses tensors of another replica, and those of the whole batch.

        Args:
            arguments: What replicas were given.

        Raises:
            UnsupportedError: If a replica has used one.
        """
        given = {
            id(tensor)
            for tensor in tf.nest.flatten(arguments, expand_composites=True)
            if isinstance(tensor, tf.Tensor)
        }
        operations = self._graph.get_operations()
        earlier = {each.name for each in operations[: self._begin]}
        for operation in operations[self._begin :]:
            maker = self._makers.get(operation.name)
            if maker is None or operation.type in _FOR_ALL:
                continue
            for tensor in operation.inputs:
                owner = self._makers.get(tensor.op.name, maker)
                if owner != maker and tensor.op.type not in _FOR_ALL:
                    raise _of_another(tensor, owner, maker)
                if (
                    tensor.op.name in earlier
                    and id(tensor) not in given
                    and not self._is_in_round
                    and tensor.dtype not in (tf.resource, tf.variant)
                    and tensor.shape.rank != 0
                    and combining.depends_on_data(tensor)
                ):
                    raise _of_the_batch(tensor)

    def _of(self, layer: Any) -> _Kept:
        attributes = vars(layer)
        return _Kept(
            list(attributes.get("_losses", ())),
            set(attributes.get("_loss_ids", ())),
            {
                name: value
                for name, value in attributes.items()
                if isinstance(value, tf.Tensor)
                and tf.is_symbolic_tensor(value)
                and value.graph is self._graph
            },
        )

    def _put(self, layer: Any, kept: _Kept) -> None:
        attributes = vars(layer)
        if "_losses" in attributes:
            attributes["_losses"][:] = kept.losses
            attributes["_loss_ids"].clear()
            attributes["_loss_ids"].update(kept.loss_ids)
        # Past Keras, which would track them.
        attributes.update(kept.tensors)


def _of_another(tensor: tf.Tensor, owner: int, user: int) -> Exception:
    return errors.UnsupportedError(
        "The replicas of a worker trace the same code in turn, and one has "
        "used a tensor of another. Expected that Python objects which they "
        "share keep no tensors of a step. Received: "
        f"{tensor.op.name!r} of replica {owner}, used by replica {user}. "
        "Return the tensor instead of keeping it, or train with "
        "replicas_per_worker=1."
    )


def _of_the_batch(tensor: tf.Tensor) -> Exception:
    return errors.UnsupportedError(
        "A function that strategy.run() calls has used a tensor of the whole "
        "batch, and each replica would have all of it. Expected the batch "
        f"among the arguments of strategy.run(). Received: {tensor.op.name!r} "
        "from outside of the function. Pass it to strategy.run(), or train "
        "with replicas_per_worker=1."
    )
