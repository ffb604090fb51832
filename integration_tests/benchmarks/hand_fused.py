"""The limit: the arithmetic of `dlrm26` in one process, fused by hand.

All tables are one variable, all dense weights another, and each has one slot:
an optimizer's step is a few operations, whatever the number of layers.
"""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

_TABLES, _ROWS, _WIDTH = 26, 20_000, 16
_LAYERS = (_TABLES * _WIDTH, 256, 128, 1)
_LEARNING_RATE = 0.05
_STEPS_PER_CALL = 10


class HandFused:
    """A model that runs the arithmetic of `fit`, and nothing else."""

    def __init__(self) -> None:
        """Makes the variables."""
        random = np.random.default_rng(0)
        self._table = tf.Variable(
            random.uniform(-0.05, 0.05, (_TABLES * _ROWS, _WIDTH)).astype("f4")
        )
        self._table_slot = tf.Variable(tf.fill(self._table.shape, 0.1))
        self._shapes = [
            shape
            for rows, columns in itertools.pairwise(_LAYERS)
            for shape in ((rows, columns), (columns,))
        ]
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        self._ends = np.cumsum([0, *sizes])
        flat = random.normal(0, 0.05, self._ends[-1]).astype("f4")
        self._dense = tf.Variable(flat)
        self._dense_slot = tf.Variable(tf.fill(self._dense.shape, 0.1))
        self._starts = tf.constant(
            [[table * _ROWS for table in range(_TABLES)]], tf.int64
        )

    def fit(
        self, data: tf.data.Dataset, *, steps_per_epoch: int, **_: Any
    ) -> None:
        """Trains; ignores other arguments of `fit`.

        Args:
            data: Endless batches.
            steps_per_epoch: Number of batches, rounded down to tens.
        """
        iterator = iter(data)
        for _call in range(steps_per_epoch // _STEPS_PER_CALL):
            self._some_steps(iterator)

    @tf.function
    def _some_steps(self, iterator: Any) -> None:
        for _ in tf.range(_STEPS_PER_CALL):
            self._step(*next(iterator))

    def _step(self, ids: tf.Tensor, labels: tf.Tensor) -> None:
        distinct, places = tf.unique(tf.reshape(ids + self._starts, [-1]))
        rows = tf.gather(self._table, distinct)
        flat = self._dense.read_value()
        with tf.GradientTape() as tape:
            tape.watch([rows, flat])
            x = tf.reshape(tf.gather(rows, places), [-1, _LAYERS[0]])
            weights = [
                tf.reshape(flat[start:end], shape)
                for start, end, shape in zip(
                    self._ends, self._ends[1:], self._shapes, strict=False
                )
            ]
            for kernel, bias in zip(
                weights[:-2:2], weights[1:-2:2], strict=True
            ):
                x = tf.nn.relu(x @ kernel + bias)
            logits = x @ weights[-2] + weights[-1]
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            )
        of_rows, of_dense = tape.gradient(loss, [rows, flat])
        of_rows = tf.convert_to_tensor(of_rows)
        sums = tf.gather(self._table_slot, distinct) + of_rows**2
        self._table_slot.scatter_update(tf.IndexedSlices(sums, distinct))
        self._table.scatter_sub(
            tf.IndexedSlices(
                _LEARNING_RATE * of_rows * tf.math.rsqrt(sums + 1e-7), distinct
            )
        )
        sums = self._dense_slot.assign_add(of_dense**2)
        self._dense.assign_sub(
            _LEARNING_RATE * of_dense * tf.math.rsqrt(sums + 1e-7)
        )
