"""Refusal of variables of tf_keras, which is Keras 2.

Its models would consist of this strategy's variables, and its `fit`, which
knows nothing of workers, would run every step on the chief.
"""

import sys
import types

from tfps_plugin import errors

_PACKAGE = "tf_keras"


def refuse(variable_name: str) -> None:
    """Raises an error if tf_keras creates the variable.

    The call stack shows that. Nothing is imported, and a program that does not
    use tf_keras pays for one dictionary lookup.

    Args:
        variable_name: Name of the variable that is being created.

    Raises:
        UnsupportedError: If a function of tf_keras is on the call stack.
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
                f"created by {module}. Import keras instead of tf_keras; for "
                "`tf.keras`, unset TF_USE_LEGACY_KERAS in the environment of "
                "the program."
            )
        frame = frame.f_back
