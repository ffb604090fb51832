"""Devices of the operations of steps, as they were traced."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin._compat.graph import tensorflow_graphs

_WORDS = ["a", "b", "c", "d"]
# Operations that look up words, drop repeated ids and check them.
_OF_THE_CPU = {"LookupTableFindV2", "Unique", "Assert"}
# Computations have none of these as results, but for int32: TensorFlow keeps
# the shapes that they are of in the memory of the CPU.
_DTYPES = {tf.string, tf.int64}


class NotesGraph(keras.layers.Layer):
    """Returns its inputs, and notes the graph in which it was called."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        super().__init__()
        self._note = note

    def call(self, x: Any) -> Any:
        self._note(tf.compat.v1.get_default_graph())
        return x


def require_ids_on_cpu(
    strategy: tfps.ParameterServerStrategy, accelerators: Sequence[str]
) -> None:
    """Trains on words, and checks where the step has its operations.

    Args:
        strategy: The strategy.
        accelerators: The devices that are for computations only, as
            `"/device:GPU:0"`.
    """
    graphs: list[Any] = []
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([], dtype="string"),
                keras.layers.StringLookup(vocabulary=_WORDS),
                keras.layers.Embedding(len(_WORDS) + 1, 4),
                NotesGraph(graphs.append),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    # Those in which the model was built.
    graphs.clear()
    data = tf.data.Dataset.from_tensor_slices(
        (_WORDS * 4, np.ones([16, 1], "float32"))
    ).batch(8)
    losses = model.fit(data, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    operations = [
        operation
        for graph in graphs
        for operation in tensorflow_graphs.operations_within(graph)
    ]
    on_cpu = {"/device:CPU:0"}
    for kind in _OF_THE_CPU:
        devices = {op.device for op in operations if op.type == kind}
        assert devices == on_cpu, f"{kind} is on {devices}"
    gathers = {op.device for op in operations if "ResourceGather" in op.type}
    assert gathers
    assert all("/job:ps/" in device for device in gathers)
    misplaced = [
        f"{op.type} {op.name} on {op.device}"
        for op in operations
        if op.device in accelerators
        and any(output.dtype in _DTYPES for output in op.outputs)
    ]
    assert not misplaced
    if len(strategy.replica_devices) > 1:
        # A graph that builds the model has none.
        computing = {op.device for op in operations if op.type == "MatMul"}
        assert computing >= {*strategy.replica_devices}
