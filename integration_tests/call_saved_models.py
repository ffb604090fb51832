"""Calls SavedModels like a program that knows nothing about this project.

    python integration_tests/call_saved_models.py FOLDER

FOLDER has SavedModels and, beside each, `NAME.inputs.npz`: the arguments of its
signature `serving_default`. For each, this writes `NAME.outputs.npz`: the
signature's results, called by `tf.saved_model.load`, and as a server calls it,
in a session (`session/...`); and the sizes of the gradients of the first result
(`gradient/...`), for the variables that the model lists.
"""

import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf


def main() -> None:
    """Calls all models of a folder."""
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.inputs.npz")):
        folder = path.with_name(path.name.removesuffix(".inputs.npz"))
        inputs = dict(np.load(path))
        outputs: dict[str, Any] = {
            **_called(str(folder), inputs),
            **_in_session(str(folder), inputs),
        }
        np.savez(path.with_name(f"{folder.name}.outputs.npz"), **outputs)
    if any(name.startswith("tfps_plugin") for name in sys.modules):
        raise RuntimeError("A SavedModel has made this import tfps_plugin.")


def _called(
    folder: str, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    model = tf.saved_model.load(folder)
    with tf.GradientTape() as tape:
        answers = model.signatures["serving_default"](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        first = answers[min(answers)]
    variables = list(getattr(model, "trainable_variables", []))
    gradients = tape.gradient(first, variables)
    return {
        **{name: answer.numpy() for name, answer in answers.items()},
        **{
            f"gradient/{number}": tf.norm(
                tf.convert_to_tensor(gradient)
            ).numpy()
            for number, gradient in enumerate(gradients)
        },
    }


def _in_session(
    folder: str, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saved = tf.compat.v1.saved_model.load(session, ["serve"], folder)
        signature = saved.signature_def["serving_default"]
        answers = session.run(
            {name: info.name for name, info in signature.outputs.items()},
            {
                signature.inputs[name].name: value
                for name, value in inputs.items()
            },
        )
    return {f"session/{name}": answer for name, answer in answers.items()}


if __name__ == "__main__":
    main()
