"""Inputs that the chief reads."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from . import input_arguments
from .bench import BATCH
from .bench import IDS
from .bench import INPUTS
from .bench import NUM_ROWS
from .bench import WEIGHTS
from .bench import X
from .bench import Y
from .input_arguments import CLASS_WEIGHTS
from .input_arguments import Arguments
from .input_arguments import Kind

_NUM_BATCHES = -(-NUM_ROWS // BATCH)
# Built before the process is connected to any cluster.
_BUILT_OUTSIDE = input_arguments.batched(INPUTS, Y)


class Sequence(keras.utils.PyDataset):
    """All rows, batch by batch.

    Attributes:
        told: Notifications from Keras, in order.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.told: list[str] = []

    def on_epoch_begin(self) -> None:
        self.told.append("begin")

    def on_epoch_end(self) -> None:
        self.told.append("end")

    def __len__(self) -> int:
        return _NUM_BATCHES

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return {"ids": IDS[rows], "x": X[rows]}, Y[rows], WEIGHTS[rows]


def _generator(*, forever: bool = False) -> Iterator[Any]:
    while True:
        for index in range(_NUM_BATCHES):
            yield Sequence()[index][:2]
        if not forever:
            return


def _arrays(is_ours: bool) -> Arguments:
    return input_arguments.same({"x": INPUTS, "y": Y, "batch_size": BATCH})


def _list_of_arrays(is_ours: bool) -> Arguments:
    return input_arguments.same(
        {"x": [IDS, X], "y": Y},
        validation_data=([IDS, X], Y),
        validation_batch_size=20,
        shuffle=False,
    )


def _weighted_arrays(is_ours: bool) -> Arguments:
    return input_arguments.same(
        {"x": INPUTS, "y": Y, "batch_size": BATCH, "sample_weight": WEIGHTS},
        validation_data=(INPUTS, Y, WEIGHTS),
    )


def _arrays_with_class_weight(is_ours: bool) -> Arguments:
    return input_arguments.of_fit(
        x=INPUTS,
        y=Y,
        class_weight=CLASS_WEIGHTS,
        validation_data=(INPUTS, Y),
    )


def _arrays_with_a_split(is_ours: bool) -> Arguments:
    return input_arguments.of_fit(
        x=INPUTS, y=Y, sample_weight=WEIGHTS, validation_split=0.3
    )


def _arrays_with_steps(is_ours: bool) -> Arguments:
    arrays = {"x": INPUTS, "y": Y, "batch_size": 10}
    return Arguments(
        {
            **arrays,
            "steps_per_epoch": 15,
            "validation_data": (INPUTS, Y),
            "validation_steps": 2,
        },
        {**arrays, "steps": 4},
        {"x": INPUTS, "batch_size": 10, "steps": 4},
    )


def _validation_now_and_then(is_ours: bool) -> Arguments:
    return input_arguments.of_fit(
        x=INPUTS,
        y=Y,
        epochs=5,
        initial_epoch=1,
        validation_data=input_arguments.batched(INPUTS, Y),
        validation_freq=2,
    )


def _tensors(is_ours: bool) -> Arguments:
    inputs = {name: tf.constant(array) for name, array in INPUTS.items()}
    return input_arguments.same(
        {"x": inputs, "y": tf.constant(Y), "batch_size": BATCH}
    )


def _data(is_ours: bool) -> Arguments:
    data = input_arguments.batched(INPUTS, Y)
    return input_arguments.same({"x": data}, validation_data=data)


def _data_built_outside(is_ours: bool) -> Arguments:
    # TensorFlow itself cannot iterate a dataset from before it was connected.
    data = _BUILT_OUTSIDE if is_ours else input_arguments.batched(INPUTS, Y)
    return input_arguments.same({"x": data}, validation_data=data)


def _shuffled_data(is_ours: bool) -> Arguments:
    rows = input_arguments.dataset(INPUTS, Y, WEIGHTS)
    return input_arguments.of_fit(x=rows.shuffle(64).batch(BATCH).prefetch(2))


def _weighted_data(is_ours: bool) -> Arguments:
    data = input_arguments.batched(INPUTS, Y, WEIGHTS)
    return input_arguments.same({"x": data}, validation_data=data)


def _too_little_data(is_ours: bool) -> Arguments:
    """Returns ten batches, where twelve are requested."""
    data = input_arguments.batched(INPUTS, Y)
    return Arguments(
        {"x": data, "epochs": 1, "steps_per_epoch": 12},
        {"x": data, "steps": 12},
        {"x": data, "steps": 12},
    )


def _endless_data(is_ours: bool) -> Arguments:
    rows = {name: array[:96] for name, array in INPUTS.items()}
    data = input_arguments.dataset(rows, Y[:96]).repeat().batch(BATCH)
    return Arguments(
        {
            "x": data,
            "steps_per_epoch": 8,
            "validation_data": data,
            "validation_steps": 3,
        },
        {"x": data, "steps": 5},
        {"x": data, "steps": 5},
    )


def _data_of_unknown_length(is_ours: bool) -> Arguments:
    data = tf.data.Dataset.from_generator(
        _generator,
        output_signature=input_arguments.batched(INPUTS, Y).element_spec,
    )
    return input_arguments.same({"x": data}, validation_data=data)


def _data_with_class_weight(is_ours: bool) -> Arguments:
    data = input_arguments.batched(INPUTS, Y)
    return input_arguments.of_fit(x=data, class_weight=CLASS_WEIGHTS)


def _sequence(is_ours: bool) -> Arguments:
    return input_arguments.same(
        {"x": Sequence(workers=1)}, validation_data=Sequence(workers=1)
    )


def _sequence_of_threads(is_ours: bool) -> Arguments:
    def make() -> Sequence:
        return Sequence(workers=2, max_queue_size=4)

    return Arguments(
        {"x": make(), "validation_data": make()}, {"x": make()}, {"x": make()}
    )


def _python_generator(is_ours: bool) -> Arguments:
    return Arguments(
        {"x": _generator(), "epochs": 1, "validation_data": _generator()},
        {"x": _generator()},
        {"x": _generator()},
    )


def _endless_generator(is_ours: bool) -> Arguments:
    return Arguments(
        {"x": _generator(forever=True), "steps_per_epoch": _NUM_BATCHES},
        {"x": _generator(forever=True), "steps": 4},
        {"x": _generator(forever=True), "steps": 4},
    )


KINDS = {
    "NumPy": Kind(_arrays),
    "NumPy list": Kind(_list_of_arrays),
    "NumPy, sample_weight": Kind(_weighted_arrays, ("fit", "evaluate")),
    "NumPy, class_weight": Kind(_arrays_with_class_weight, ("fit",)),
    "NumPy, validation_split": Kind(_arrays_with_a_split, ("fit",)),
    "NumPy, steps": Kind(_arrays_with_steps),
    "NumPy, validation_freq": Kind(_validation_now_and_then, ("fit",)),
    "tensors": Kind(_tensors),
    "tf.data": Kind(_data),
    "tf.data, built outside": Kind(_data_built_outside),
    "tf.data, shuffled": Kind(_shuffled_data, ("fit",)),
    "tf.data, sample weights": Kind(_weighted_data),
    "tf.data, endless": Kind(_endless_data),
    "tf.data, too few": Kind(_too_little_data),
    "tf.data, unknown length": Kind(_data_of_unknown_length),
    "tf.data, class_weight": Kind(_data_with_class_weight, ("fit",)),
    "PyDataset": Kind(_sequence),
    "PyDataset, workers=2": Kind(_sequence_of_threads),
    "generator": Kind(_python_generator),
    "generator, steps": Kind(_endless_generator),
}
