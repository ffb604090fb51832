"""Files of Orbax's callback; needs Orbax itself only to restore."""

import pathlib
import shutil
import tempfile
from typing import Any

import keras

from . import moments
from .moments import Moment


def folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folder of each checkpoint, the oldest first.

    Args:
        folder: The callback's folder.
    """
    return sorted(folder.iterdir(), key=lambda path: int(path.name))


def observed(folder: pathlib.Path, model: keras.Model) -> Any:
    """Returns the contents of each checkpoint, restored in two ways.

    Args:
        folder: The callback's folder.
        model: A model of the same kind; it is changed.
    """
    return {
        "checkpoints": {
            path.name: restored(model, path) for path in folders(folder)
        },
        "loaded": loaded(folder),
    }


def restored(model: keras.Model, checkpoint: pathlib.Path) -> Moment:
    """Restores one checkpoint into the model, and returns its state.

    Args:
        model: A model of the same kind; it is changed.
        checkpoint: One of `folders`.
    """
    # Keras only takes the newest of a folder.
    with tempfile.TemporaryDirectory() as folder:
        alone = pathlib.Path(folder)
        shutil.copytree(checkpoint, alone / checkpoint.name)
        return moments.saved(model, alone)


def loaded(folder: pathlib.Path) -> Moment:
    """Loads the newest as a new model, in the present scope, if any.

    Args:
        folder: The callback's folder.
    """
    return moments.now(keras.saving.load_model(str(folder)))
