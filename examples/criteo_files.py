"""Files in Criteo's format, with clicks that come about by known chances.

A line is an ad that was shown: whether it was clicked on, 13 whole numbers and
26 categories, separated by tabs. Categories are hexadecimal words; some are
empty.

The chance of a click depends on each number, on each category alone, and on
eight of the categories by pairs: a model that adds up what categories say one
by one misses something.
"""

import pathlib

import numpy as np
from sklearn import metrics

NUM_NUMBERS = 13
NUM_PAIRS = 4
# From small categories to large ones.
VOCABULARY_SIZES = np.geomspace(10, 2000, 26).astype(int)


def write_files(folder: str, rows: int, num_files: int = 9) -> float:
    """Writes `day_0`, `day_1` and so on.

    Args:
        folder: Folder that exists.
        rows: Number of lines of all files together.
        num_files: Number of files.

    Returns:
        The AUC of the chances on the last file: the best possible one.
    """
    random = np.random.default_rng(1)
    numbers = random.lognormal(1, 1, (rows, NUM_NUMBERS)).astype(int)
    logits = np.log1p(numbers) @ random.normal(0, 0.15, NUM_NUMBERS) - 1
    words, vectors = [], []
    for size in VOCABULARY_SIZES:
        # Some words are more frequent than others.
        ids = (size * random.random(rows) ** 2).astype(int)
        vocabulary = np.char.mod("%08x", random.integers(2**32, size=size))
        vocabulary[random.random(size) < 0.01] = ""
        words.append(vocabulary[ids])
        logits += random.normal(0, 0.2, size)[ids]
        vectors.append(random.normal(0, 0.7, (size, 2))[ids])
    for pair in range(NUM_PAIRS):
        first, second = vectors[2 * pair : 2 * pair + 2]
        logits += (first * second).sum(axis=1)
    chances = 1 / (1 + np.exp(-logits))
    clicks = random.random(rows) < chances

    columns = [clicks.astype(int), *numbers.T, *words]
    table = np.stack([column.astype(str) for column in columns], axis=1)
    for number, part in enumerate(np.array_split(table, num_files)):
        lines = ["\t".join(row) + "\n" for row in part]
        pathlib.Path(folder, f"day_{number}").write_text("".join(lines))
    last = slice(rows - len(part), None)
    return float(metrics.roc_auc_score(clicks[last], chances[last]))
