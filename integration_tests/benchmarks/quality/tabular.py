"""A wide and deep model of ids and numbers, one table for all columns."""

import keras


def model(
    num_ids: int, columns: int, numbers: int, learning_rate: float
) -> keras.Model:
    """Makes the model.

    Args:
        num_ids: Rows of the tables.
        columns: Number of ids of an example.
        numbers: Number of numbers of an example.
        learning_rate: Learning rate of Adam.

    Returns:
        A compiled model from ids and numbers to a probability.
    """
    ids = keras.Input((columns,), dtype="int32", name="ids")
    values = keras.Input((numbers,), name="numbers")
    deep = keras.layers.Flatten()(keras.layers.Embedding(num_ids, 8)(ids))
    deep = keras.layers.Concatenate()([deep, values])
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
    wide = keras.layers.Embedding(num_ids, 1, embeddings_initializer="zeros")
    logit = keras.layers.Dense(1)(deep) + keras.ops.sum(wide(ids), axis=1)
    answer = keras.layers.Activation("sigmoid")(logit)
    made = keras.Model({"ids": ids, "numbers": values}, answer)
    made.compile(keras.optimizers.Adam(learning_rate), "binary_crossentropy")
    return made
