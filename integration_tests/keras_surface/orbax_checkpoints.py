"""What Orbax's callback has written; needs Orbax itself only to restore."""

import pathlib
import shutil
import tempfile
from typing import Any

import keras

from . import moments
from .moments import Moment


def folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """A folder for each checkpoint, the oldest first.

    Args:
        folder: As given to the callback.
    """
    return sorted(folder.iterdir(), key=lambda path: int(path.name))


def observed(folder: pathlib.Path, model: keras.Model) -> Any:
    """What is in each checkpoint, restored in two ways.

    Args:
        folder: As given to the callback.
        model: A model of the same kind; it is changed.
    """
    return {
        "checkpoints": {
            path.name: restored(model, path) for path in folders(folder)
        },
        "loaded": loaded(folder),
    }


def restored(model: keras.Model, checkpoint: pathlib.Path) -> Moment:
    """What is in one checkpoint, restored into the model.

    Args:
        model: A model of the same kind; it is changed.
        checkpoint: One of `folders`.
    """
    # Keras takes the newest of a folder, and no other.
    with tempfile.TemporaryDirectory() as folder:
        alone = pathlib.Path(folder)
        shutil.copytree(checkpoint, alone / checkpoint.name)
        return moments.saved(model, alone)


def loaded(folder: pathlib.Path) -> Moment:
    """The newest, as a model of its own; in the scope around the call, if any.

    Args:
        folder: As given to the callback.
    """
    return moments.now(keras.saving.load_model(str(folder)))
