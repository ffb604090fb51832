"""Checkpoints of `tf.train.Checkpoint` and `tf.train.CheckpointManager`.

A checkpoint consists of several files with one prefix, `ckpt-3.index` and
`ckpt-3.data-...`. The index is written last. Sharded variables appear whole in
it, so a plain model can load them.
"""

import os
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_checkpoints as compat
from tfps_plugin.evaluation.checkpoint import Checkpoint
from tfps_plugin.evaluation.checkpoint import Stamp

_ENDING = ".index"
# Usual name of the model, as in tf.train.Checkpoint(model=model).
_USUAL_NAME = "model"
# TensorFlow's own counter of checkpoints.
_SAVE_COUNTER = "save_counter"
# Name of the step counter in Keras's optimizers.
_COUNTER = "_iterations"


class TensorFlowPrefix:
    """Checkpoint of TensorFlow: files with one prefix.

    The model may be the root of the checkpoint or have any name in it.
    """

    pattern = f"*{_ENDING}"

    def find(self, listing: Iterable[tuple[str, Stamp]]) -> list[Checkpoint]:
        """Returns the prefixes that have an index."""
        return [
            Checkpoint(
                path=path.removesuffix(_ENDING),
                name=os.path.basename(path).removesuffix(_ENDING),
                file=path,
                stamp=stamp,
                kind=self,
            )
            for path, stamp in listing
            if path.endswith(_ENDING)
        ]

    def load(self, checkpoint: Checkpoint, model: Any) -> int | None:
        """Restores every weight; see `CheckpointKind.load`."""
        reader = compat.open_reader(checkpoint.path)
        graph = compat.read_object_graph(reader)
        missing: list[str] = []
        for candidate in _candidates(graph, model):
            left_out = _restore(candidate, checkpoint.path, model)
            if not left_out:
                return _read_iterations(reader, graph)
            # The attempt that came closest is the most informative one.
            if not missing or len(left_out) < len(missing):
                missing = left_out
        raise ValueError(
            "The checkpoint has no values for some weights of the model. "
            f"Received: missing={missing}. Save the whole model, as in "
            "tf.train.Checkpoint(model=model, optimizer=model.optimizer)."
        )


def _candidates(graph: Any, model: Any) -> Iterator[tf.train.Checkpoint]:
    """Yields the structures that may have been saved, likeliest first."""
    names = [child.local_name for child in graph.nodes[0].children]
    if _USUAL_NAME in names:
        yield tf.train.Checkpoint(**{_USUAL_NAME: model})
    yield tf.train.Checkpoint(root=model)
    for name in names:
        if name not in (_USUAL_NAME, _SAVE_COUNTER):
            yield tf.train.Checkpoint(**{name: model})


def _restore(
    candidate: tf.train.Checkpoint, path: str, model: Any
) -> list[str]:
    """Restores what fits; returns the paths of weights without a value."""
    before = compat.restore_marks(model.weights)
    # The checkpoint may contain more, such as an optimizer.
    candidate.restore(path).expect_partial()
    after = compat.restore_marks(model.weights)
    return [
        weight.path
        for weight, old, new in zip(model.weights, before, after, strict=True)
        if new <= old
    ]


def _read_iterations(reader: Any, graph: Any) -> int | None:
    """Reads the step counter of the optimizer that is nearest to the root."""
    waiting, seen = [0], {0}
    while waiting:
        node = graph.nodes[waiting.pop(0)]
        for child in node.children:
            if child.local_name == _COUNTER:
                (attribute,) = graph.nodes[child.node_id].attributes
                return int(reader.get_tensor(attribute.checkpoint_key))
            if child.node_id not in seen:
                seen.add(child.node_id)
                waiting.append(child.node_id)
    return None
