"""Uses the model that flights.py has saved, in plain Keras, without a cluster.

    python flights_predict.py output/flights

Opens the saved model, asks it about the flights of November and December, and
compares its answers with what happened.
"""

import argparse
import pathlib

import keras
import numpy as np
from flights_data import describe_flights
from flights_data import part
from flights_data import read_tables
from flights_features import Encoder
from flights_report import score

MODEL_FILE = "flights.keras"
ENCODER_FILE = "encoder.json"


def main() -> None:
    """Predicts, prints the scores, and writes the probabilities if asked."""
    parser = argparse.ArgumentParser(
        description="Predict with the model that flights.py has saved."
    )
    parser.add_argument(
        "folder", type=pathlib.Path, help="the output folder of flights.py"
    )
    parser.add_argument(
        "--write", type=pathlib.Path, help="file for the probabilities (.npy)"
    )
    options = parser.parse_args()
    model = keras.models.load_model(options.folder / MODEL_FILE)
    encoder = Encoder.load(options.folder / ENCODER_FILE)
    flights = part(describe_flights(read_tables()), "test")
    predicted = model.predict(
        encoder.encode(flights), batch_size=8192, verbose=0
    )
    scores = score(flights["late"], predicted[:, 0])
    print(
        f"{len(flights):,} flights: AUC {scores.auc:.4f}, "
        f"log loss {scores.log_loss:.4f}"
    )
    if options.write:
        np.save(options.write, predicted[:, 0])


if __name__ == "__main__":
    main()
