"""A wide and deep model in plain Keras, which knows nothing about clusters."""

from collections.abc import Mapping

import keras

EMBEDDING_WIDTHS = {
    "tail_number": 16,
    "flight": 16,
    "carrier": 8,
    "origin": 2,
    "destination": 8,
    "plane_model": 8,
    "hour": 8,
    "weekday": 4,
}
"""Numbers that the deep part learns for each id of a column."""

HIDDEN_UNITS = (64, 32)
DROPOUT = 0.3


def build_model(
    table_sizes: Mapping[str, int],
    wide_size: int,
    wide_columns: int,
    numbers: int,
) -> keras.Model:
    """Builds the model.

    The wide part memorizes: it is a linear model, with one weight for each word
    and each cross of words. The deep part generalizes: it sees the numbers, and
    an embedding of each word.

    Args:
        table_sizes: Number of ids of each column with an embedding.
        wide_size: Number of ids of the wide part.
        wide_columns: Number of columns of the wide part.
        numbers: Number of numeric columns.

    Returns:
        A model from features to the probability that the flight is late.
    """
    ids = {
        name: keras.Input((), dtype="int32", name=name) for name in table_sizes
    }
    wide_ids = keras.Input((wide_columns,), dtype="int32", name="wide")
    values = keras.Input((numbers,), name="numbers")

    deep = keras.layers.Concatenate()(
        [
            keras.layers.Embedding(
                size, EMBEDDING_WIDTHS[name], name=f"{name}_table"
            )(ids[name])
            for name, size in table_sizes.items()
        ]
        + [values]
    )
    for units in HIDDEN_UNITS:
        deep = keras.layers.Dense(units, activation="relu")(deep)
        deep = keras.layers.Dropout(DROPOUT)(deep)
    deep = keras.layers.Dense(1, name="deep")(deep)

    weights = keras.layers.Embedding(
        wide_size, 1, embeddings_initializer="zeros", name="wide_table"
    )(wide_ids)
    wide = keras.ops.sum(weights, axis=1)

    probability = keras.layers.Activation("sigmoid")(wide + deep)
    return keras.Model(
        {**ids, "wide": wide_ids, "numbers": values}, probability
    )
