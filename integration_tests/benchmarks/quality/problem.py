"""A data set, a model of it, and a score of its answers."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Rows:
    """Examples.

    Attributes:
        ids: Ids of shape `(rows, columns)`, int32; no two columns share an id
            if a model has one table for all.
        numbers: Numbers of shape `(rows, columns)`, float32; None for none.
        labels: Labels of shape `(rows,)`, float32.
    """

    ids: npt.NDArray[np.int32]
    numbers: npt.NDArray[np.float32] | None
    labels: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def features(self) -> Any:
        """The input of the model."""
        if self.numbers is None:
            return self.ids
        return {"ids": self.ids, "numbers": self.numbers}

    def dataset_fn(
        self, path: pathlib.Path, batch: int
    ) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
        """Makes endless batches of a worker's share, in random order.

        Args:
            path: A file that workers can read; it is written here.
            batch: Rows of a batch.
        """
        ids = self.ids.astype(np.int32)
        parts = [ids, self.labels[:, None].astype(np.float32).view(np.int32)]
        if self.numbers is not None:
            parts.append(self.numbers.astype(np.float32).view(np.int32))
        np.concatenate(parts, axis=1).tofile(path)
        num_rows, num_ids = ids.shape
        num_columns = sum(part.shape[1] for part in parts)
        name, has_numbers = str(path), self.numbers is not None

        def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
            table = tf.reshape(
                tf.io.decode_raw(tf.io.read_file(name), tf.int32),
                [num_rows, num_columns],
            )
            share = tf.data.Dataset.range(num_rows).shard(
                context.num_input_pipelines, context.input_pipeline_id
            )

            def rows(chosen: tf.Tensor) -> Any:
                drawn = tf.gather(table, chosen)
                ids, rest = tf.split(drawn, [num_ids, num_columns - num_ids], 1)
                values = tf.bitcast(rest, tf.float32)
                features = (
                    {"ids": ids, "numbers": values[:, 1:]}
                    if has_numbers
                    else ids
                )
                return features, values[:, :1]

            return (
                share.shuffle(num_rows)
                .repeat()
                .batch(batch)
                .map(rows)
                .prefetch(4)
            )

        return dataset


@dataclasses.dataclass(frozen=True)
class Problem:
    """A learning problem.

    Attributes:
        name: Name in tables.
        make_model: Makes a compiled model.
        batch: Rows of a step's batch.
        epochs: Number of passes over all training rows.
        train: Training rows.
        questions: Test input of the trained model.
        score: Scores the model's answers.
        metric: Name of the score.
        higher_is_better: Whether a higher score is better.
    """

    name: str
    make_model: Callable[[], keras.Model]
    batch: int
    epochs: int
    train: Rows
    questions: Any
    score: Callable[[npt.NDArray[np.float32]], float]
    metric: str
    higher_is_better: bool

    @property
    def steps(self) -> int:
        """Number of steps of one epoch."""
        return len(self.train) // self.batch
