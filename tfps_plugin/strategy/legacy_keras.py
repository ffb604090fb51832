"""Refuses variables of tf_keras, which is Keras 2.

Its models would be made of our variables, and its `fit` would run every step
on the chief: nothing of it knows the workers.
"""

import sys
import types

from tfps_plugin import errors

_PACKAGE = "tf_keras"


def refuse(variable_name: str) -> None:
    """Raises an error if tf_keras makes the variable that is being created.

    It is recognized by the functions that are being called. Nothing is
    imported, and a program that does not use tf_keras pays a dictionary
    lookup.

    Args:
        variable_name: Name of the variable.

    Raises:
        errors.UnsupportedError: If it does.
    """
    if _PACKAGE not in sys.modules:
        return
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module.partition(".")[0] == _PACKAGE:
            raise errors.UnsupportedError(
                "tf_keras is Keras 2, and tfps.ParameterServerStrategy trains "
                "models of Keras 3 only: tf_keras would run every step on the "
                "chief. Expected: layers, models, metrics and optimizers of "
                f"`import keras`. Received: the variable {variable_name!r}, "
                f"made by {module}. Import keras in the place of tf_keras; for "
                "`tf.keras`, unset TF_USE_LEGACY_KERAS in the environment of "
                "the program."
            )
        frame = frame.f_back
