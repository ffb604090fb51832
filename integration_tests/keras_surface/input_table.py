"""What can be given to fit, evaluate and predict.

Each kind is a function that makes the arguments of the three: for our
strategy, or for one process, which reads what all workers read, one pipeline
after the other.
"""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

import tfps_plugin as tfps

from .bench import BATCH
from .bench import IDS
from .bench import INPUTS
from .bench import NUM_ROWS
from .bench import WEIGHTS
from .bench import X
from .bench import Y

NUM_WORKERS = 2
_NUM_BATCHES = -(-NUM_ROWS // BATCH)
_CLASS_WEIGHTS = {0: 0.5, 1: 2.0}


class Arguments(NamedTuple):
    """What to call a model's methods with.

    Attributes:
        fit: Arguments of `fit`; those of every kind are added.
        evaluate: Arguments of `evaluate`.
        predict: Arguments of `predict`.
    """

    fit: dict[str, Any]
    evaluate: dict[str, Any]
    predict: dict[str, Any]


def _dataset(*parts: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts)


def _batched(*parts: Any) -> tf.data.Dataset:
    return _dataset(*parts).batch(BATCH)


# Built before the process is connected to any cluster.
_BUILT_OUTSIDE = _batched(INPUTS, Y)


def _shares(context: tf.distribute.InputContext) -> tf.data.Dataset:
    rows = _dataset(INPUTS, Y)
    return rows.shard(
        context.num_input_pipelines, context.input_pipeline_id
    ).batch(BATCH)


_SPLITS = [(begin, min(begin + 40, NUM_ROWS)) for begin in (0, 40, 80, 120)]


def _of_split(split: Any) -> tf.data.Dataset:
    begin, end = split
    return _dataset(INPUTS, Y).skip(begin).take(end - begin).batch(BATCH)


def _one_after_the_other(
    dataset_fn: Callable[[Any], tf.data.Dataset], parts: list[Any]
) -> tf.data.Dataset:
    return functools.reduce(
        lambda whole, part: whole.concatenate(part), map(dataset_fn, parts)
    )


def _all_shares() -> tf.data.Dataset:
    return _one_after_the_other(
        _shares,
        [
            tf.distribute.InputContext(NUM_WORKERS, index)
            for index in range(NUM_WORKERS)
        ],
    )


def _of_splits(
    dataset_fn: Callable[[Any], tf.data.Dataset], is_ours: bool, splits: Any
) -> Arguments:
    if is_ours:
        given = tfps.DatasetCreator(dataset_fn, splits=splits)
    else:
        in_order = splits(0) if callable(splits) else splits
        given = _one_after_the_other(dataset_fn, in_order)
    return _same({"x": given}, validation_data=given)


class Sequence(keras.utils.PyDataset):
    """All rows, batch by batch.

    Attributes:
        told: What Keras has told it, in order.
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


def _same(arguments: dict[str, Any], **fit: Any) -> Arguments:
    """Arrays or datasets that all three methods take."""
    predict = {k: v for k, v in arguments.items() if k != "y"}
    predict.pop("sample_weight", None)
    return Arguments({**arguments, **fit}, arguments, predict)


def _creator_without_steps(is_ours: bool) -> Arguments:
    creator = tfps.DatasetCreator(_shares)
    all_of_it = creator if is_ours else _all_shares()
    # predict() reads it on the chief, as the only pipeline.
    in_order = creator if is_ours else _batched(INPUTS, Y)
    return Arguments(
        {"x": all_of_it, "validation_data": all_of_it},
        {"x": all_of_it},
        {"x": in_order},
    )


def _creator_with_steps(is_ours: bool) -> Arguments:
    """No partial batches, so that any ten batches train the same rows."""

    def dataset_fn(context: Any) -> tf.data.Dataset:
        return (
            _dataset(
                {name: array[:BATCH] for name, array in INPUTS.items()},
                Y[:BATCH],
            )
            .repeat()
            .batch(BATCH)
        )

    given = tfps.DatasetCreator(dataset_fn) if is_ours else dataset_fn(None)
    return Arguments(
        {
            "x": given,
            "steps_per_epoch": 9,
            "validation_data": given,
            "validation_steps": 5,
        },
        {"x": given, "steps": 7},
        {"x": given, "steps": 3},
    )


def _creator_with_splits(is_ours: bool, splits: Any = _SPLITS) -> Arguments:
    return _of_splits(_of_split, is_ours, splits)


def _creator_with_class_weight(is_ours: bool) -> Arguments:
    arguments = _creator_without_steps(is_ours)
    return arguments._replace(
        fit={**arguments.fit, "class_weight": _CLASS_WEIGHTS}
    )


def _creator_of_weighted_rows(is_ours: bool) -> Arguments:
    def dataset_fn(split: Any) -> tf.data.Dataset:
        begin, end = split
        rows = _dataset(INPUTS, Y, WEIGHTS).skip(begin)
        return rows.take(end - begin).batch(BATCH)

    return _of_splits(dataset_fn, is_ours, _SPLITS)


def _arrays(is_ours: bool) -> Arguments:
    return _same({"x": INPUTS, "y": Y, "batch_size": BATCH})


def _list_of_arrays(is_ours: bool) -> Arguments:
    return _same(
        {"x": [IDS, X], "y": Y},
        validation_data=([IDS, X], Y),
        validation_batch_size=20,
        shuffle=False,
    )


def _weighted_arrays(is_ours: bool) -> Arguments:
    return _same(
        {"x": INPUTS, "y": Y, "batch_size": BATCH, "sample_weight": WEIGHTS},
        validation_data=(INPUTS, Y, WEIGHTS),
    )


def _arrays_with_class_weight(is_ours: bool) -> Arguments:
    return _same(
        {"x": INPUTS, "y": Y},
        class_weight=_CLASS_WEIGHTS,
        validation_data=(INPUTS, Y),
    )


def _arrays_with_a_split(is_ours: bool) -> Arguments:
    return _same(
        {"x": INPUTS, "y": Y, "sample_weight": WEIGHTS},
        validation_split=0.3,
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
    return _same(
        {"x": INPUTS, "y": Y},
        epochs=5,
        initial_epoch=1,
        validation_data=_batched(INPUTS, Y),
        validation_freq=2,
    )


def _tensors(is_ours: bool) -> Arguments:
    inputs = {name: tf.constant(array) for name, array in INPUTS.items()}
    return _same({"x": inputs, "y": tf.constant(Y), "batch_size": BATCH})


def _data(is_ours: bool) -> Arguments:
    data = _batched(INPUTS, Y)
    return _same({"x": data}, validation_data=data)


def _data_built_outside(is_ours: bool) -> Arguments:
    # TensorFlow itself can iterate no dataset from before it was connected.
    data = _BUILT_OUTSIDE if is_ours else _batched(INPUTS, Y)
    return _same({"x": data}, validation_data=data)


def _shuffled_data(is_ours: bool) -> Arguments:
    data = _dataset(INPUTS, Y, WEIGHTS).shuffle(64).batch(BATCH).prefetch(2)
    in_order = _batched(INPUTS, Y, WEIGHTS)
    return _same({"x": in_order}, validation_data=in_order)._replace(
        fit={"x": data}
    )


def _endless_data(is_ours: bool) -> Arguments:
    rows = {name: array[:96] for name, array in INPUTS.items()}
    data = _dataset(rows, Y[:96]).repeat().batch(BATCH)
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
        _generator, output_signature=_batched(INPUTS, Y).element_spec
    )
    return _same({"x": data}, validation_data=data)


def _data_with_class_weight(is_ours: bool) -> Arguments:
    data = _batched(INPUTS, Y)
    return _same({"x": data}, class_weight=_CLASS_WEIGHTS)


def _sequence(is_ours: bool) -> Arguments:
    return _same(
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


KINDS: dict[str, Callable[[bool], Arguments]] = {
    "DatasetCreator": _creator_without_steps,
    "DatasetCreator, steps": _creator_with_steps,
    "DatasetCreator, splits": _creator_with_splits,
    "DatasetCreator, splits of a pass": lambda is_ours: _creator_with_splits(
        is_ours, splits=lambda number: _SPLITS[::-1]
    ),
    "DatasetCreator, class_weight": _creator_with_class_weight,
    "DatasetCreator, sample weights": _creator_of_weighted_rows,
    "NumPy": _arrays,
    "NumPy list": _list_of_arrays,
    "NumPy, sample_weight": _weighted_arrays,
    "NumPy, class_weight": _arrays_with_class_weight,
    "NumPy, validation_split": _arrays_with_a_split,
    "NumPy, steps": _arrays_with_steps,
    "NumPy, validation_freq": _validation_now_and_then,
    "tensors": _tensors,
    "tf.data": _data,
    "tf.data, built outside": _data_built_outside,
    "tf.data, shuffled": _shuffled_data,
    "tf.data, endless": _endless_data,
    "tf.data, unknown length": _data_of_unknown_length,
    "tf.data, class_weight": _data_with_class_weight,
    "PyDataset": _sequence,
    "PyDataset, workers=2": _sequence_of_threads,
    "generator": _python_generator,
    "generator, steps": _endless_generator,
}
