"""Inputs that the workers read."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tfps_plugin as tfps

from . import input_arguments
from .bench import BATCH
from .bench import INPUTS
from .bench import NUM_ROWS
from .bench import WEIGHTS
from .bench import Y
from .input_arguments import CLASS_WEIGHTS
from .input_arguments import Arguments
from .input_arguments import Kind

NUM_WORKERS = 2


def _shares(context: tf.distribute.InputContext) -> tf.data.Dataset:
    rows = input_arguments.dataset(INPUTS, Y)
    return rows.shard(
        context.num_input_pipelines, context.input_pipeline_id
    ).batch(BATCH)


_SPLITS = [(begin, min(begin + 40, NUM_ROWS)) for begin in (0, 40, 80, 120)]


def _of_split(split: Any) -> tf.data.Dataset:
    begin, end = split
    return (
        input_arguments.dataset(INPUTS, Y)
        .skip(begin)
        .take(end - begin)
        .batch(BATCH)
    )


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
    return input_arguments.same({"x": given}, validation_data=given)


def _creator_without_steps(is_ours: bool) -> Arguments:
    creator = tfps.DatasetCreator(_shares)
    all_of_it = creator if is_ours else _all_shares()
    # predict() reads it on the chief, as the only pipeline.
    in_order = creator if is_ours else input_arguments.batched(INPUTS, Y)
    return Arguments(
        {"x": all_of_it, "validation_data": all_of_it},
        {"x": all_of_it},
        {"x": in_order},
    )


def _one_batch_for_ever() -> tf.data.Dataset:
    rows = {name: array[:BATCH] for name, array in INPUTS.items()}
    return input_arguments.dataset(rows, Y[:BATCH]).repeat().batch(BATCH)


def _creator_with_steps(is_ours: bool) -> Arguments:
    """Makes no partial batches, so that any ten batches train the same rows."""

    def dataset_fn(context: Any) -> tf.data.Dataset:
        return _one_batch_for_ever()

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


def _creator_of_too_little(is_ours: bool) -> Arguments:
    """Returns four batches, where eight are requested, read by the chief.

    If workers read them, it would take a while to notice the end.
    """

    def dataset_fn(context: Any) -> tf.data.Dataset:
        return _one_batch_for_ever().take(4)

    given = tfps.DatasetCreator(dataset_fn) if is_ours else dataset_fn(None)
    return Arguments({}, {}, {"x": given, "steps": 8})


def _creator_with_splits(is_ours: bool, splits: Any = _SPLITS) -> Arguments:
    return _of_splits(_of_split, is_ours, splits)


def _creator_with_class_weight(is_ours: bool) -> Arguments:
    fit = _creator_without_steps(is_ours).fit
    return input_arguments.of_fit(**fit, class_weight=CLASS_WEIGHTS)


def _creator_of_weighted_rows(is_ours: bool) -> Arguments:
    def dataset_fn(split: Any) -> tf.data.Dataset:
        begin, end = split
        rows = input_arguments.dataset(INPUTS, Y, WEIGHTS).skip(begin)
        return rows.take(end - begin).batch(BATCH)

    return _of_splits(dataset_fn, is_ours, _SPLITS)


KINDS = {
    "DatasetCreator": Kind(_creator_without_steps),
    "DatasetCreator, steps": Kind(_creator_with_steps),
    "DatasetCreator, too few": Kind(_creator_of_too_little, ("predict",)),
    "DatasetCreator, splits": Kind(_creator_with_splits),
    "DatasetCreator, splits of a pass": Kind(
        lambda is_ours: _creator_with_splits(
            is_ours, splits=lambda number: _SPLITS[::-1]
        )
    ),
    "DatasetCreator, class_weight": Kind(_creator_with_class_weight, ("fit",)),
    "DatasetCreator, sample weights": Kind(_creator_of_weighted_rows),
}
