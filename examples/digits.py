"""Handwritten digits: a convolutional network, trained on arrays.

    tfps run --workers 2 --ps 2 examples/digits.py
    python examples/digits.py

The input is what `fit` takes on one machine: arrays, which the chief reads and
sends to the workers. Only `strategy.scope()` is new. That is enough as long as
one process can read the data as fast as the workers use them.

The data are the 1,797 digits of scikit-learn, of eight times eight pixels, a
quarter of them for the test. The baseline is scikit-learn's own logistic
regression.
"""

import argparse

import keras
from sklearn import datasets
from sklearn import linear_model
from sklearn import model_selection

import tfps_plugin as tfps


def main() -> None:
    """Trains the network and the baseline, and prints both accuracies."""
    parser = argparse.ArgumentParser(description="Recognize digits.")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    tfps.init()  # A worker or a ps serves here until the job is over.
    pixels, digits = datasets.load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = model_selection.train_test_split(
        pixels / 16, digits, test_size=0.25, random_state=1, stratify=digits
    )

    keras.utils.set_random_seed(1)
    strategy = tfps.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Reshape((8, 8, 1)),
                keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(64, 3, activation="relu", padding="same"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.003),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    model.fit(
        x_train,
        y_train,
        batch_size=32,
        epochs=options.epochs,
        verbose=2,
    )
    scores = model.evaluate(x_test, y_test, verbose=0, return_dict=True)

    baseline = linear_model.LogisticRegression(max_iter=1000)
    baseline.fit(x_train, y_train)
    print(f"\n{'':24}{'test accuracy':>14}")
    print(f"{'convolutional network':24}{scores['accuracy']:>14.4f}")
    print(f"{'logistic regression':24}{baseline.score(x_test, y_test):>14.4f}")


if __name__ == "__main__":
    main()
