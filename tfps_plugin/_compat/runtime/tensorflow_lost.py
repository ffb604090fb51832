"""Private TensorFlow API: stand-ins for tensors that a process has lost.

When a process becomes a chief, TensorFlow recreates its devices, and some
objects cannot follow. An operation on one of them would fail late, with an
error about devices or resources that the program does not know. A stand-in
replaces the tensor, and refuses every use with an error that names the object.

Used since TensorFlow 2.20: `convert_to_tensor` calls `__tf_tensor__`.
"""

from typing import Any
from typing import NoReturn

import tensorflow as tf

from tfps_plugin import errors


class LostTensor:
    """A tensor of an object that does not work anymore.

    Attributes:
        dtype: Dtype of the tensor: a resource or a variant.
        description: The object, in words that begin with an article.
        remedy: Instructions for the user, as a sentence.
    """

    def __init__(self, dtype: tf.DType, description: str, remedy: str) -> None:
        """Creates the stand-in.

        Args:
            dtype: Dtype of the tensor.
            description: The object, in words that begin with an article.
            remedy: Instructions for the user, as a sentence.
        """
        self.dtype = dtype
        self.description = description
        self.remedy = remedy

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> NoReturn:
        """Raises UnsupportedError: an operation needs the tensor."""
        raise self._error()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            # Python's own protocols, such as copying and pickling.
            raise AttributeError(name)
        raise self._error()

    def _error(self) -> errors.UnsupportedError:
        return errors.UnsupportedError(
            "The program uses an object that it made before the "
            "tfps.ParameterServerStrategy. When a process becomes the chief of "
            "a cluster, TensorFlow makes its devices anew, and this object "
            "stayed on the earlier ones. Expected an object that was made "
            f"after the strategy. Received: {self.description}. {self.remedy}"
        )
