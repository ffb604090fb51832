"""Checkpoints of `tf.train.Checkpoint` and `tf.train.CheckpointManager`.

A checkpoint is several files of one prefix, `ckpt-3.index` and
`ckpt-3.data-...`. The index is written last. Variables that are cut over
parameter servers stand in it as whole ones, so a plain model can load them.
"""

import os
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_checkpoints as compat
from tfps_plugin.evaluation.checkpoint import Checkpoint
from tfps_plugin.evaluation.checkpoint import Stamp

_ENDING = ".index"
# What people call the model in tf.train.Checkpoint(model=model).
_USUAL_NAME = "model"
_TENSORFLOWS_OWN = "save_counter"
# How Keras's optimizers call their step counter.
_COUNTER = "_iterations"


class TensorFlowPrefix:
    """The files of one prefix.

    The model is found under whatever name it was given, or as the root.
    """

    pattern = f"*{_ENDING}"

    def find(self, listing: Iterable[tuple[str, Stamp]]) -> list[Checkpoint]:
        """The prefixes that have an index."""
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
            # The attempt that came closest tells most.
            if not missing or len(left_out) < len(missing):
                missing = left_out
        raise ValueError(
            f"It has no values for these weights of the model: {missing}. "
            "Save the whole model, as in tf.train.Checkpoint(model=model, "
            "optimizer=model.optimizer)."
        )


def _candidates(graph: Any, model: Any) -> Iterator[tf.train.Checkpoint]:
    """What may have been saved, the likeliest first."""
    names = [child.local_name for child in graph.nodes[0].children]
    if _USUAL_NAME in names:
        yield tf.train.Checkpoint(**{_USUAL_NAME: model})
    yield tf.train.Checkpoint(root=model)
    for name in names:
        if name not in (_USUAL_NAME, _TENSORFLOWS_OWN):
            yield tf.train.Checkpoint(**{name: model})


def _restore(
    candidate: tf.train.Checkpoint, path: str, model: Any
) -> list[str]:
    """Restores what fits; returns the paths of weights that got nothing."""
    before = compat.restore_marks(model.weights)
    # What else was saved, such as an optimizer, is none of our business.
    candidate.restore(path).expect_partial()
    after = compat.restore_marks(model.weights)
    return [
        weight.path
        for weight, old, new in zip(model.weights, before, after, strict=True)
        if new <= old
    ]


def _read_iterations(reader: Any, graph: Any) -> int | None:
    """The counter of the optimizer that is nearest to the root."""
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
