"""Keeps what TensorFlow logs at every start off the screen of a program.

    import tfps_plugin.quiet  # first: before TensorFlow and Keras

Python programs under `tfps run` need no such line. docs/logging.md says what
is hidden, and how.
"""

import os

from tfps_plugin.cluster.output import stderr_filter
from tfps_plugin.cluster.output import tensorflow_noise


def _begin() -> None:
    level = tensorflow_noise.choose_log_level(
        os.environ, wants_everything=False
    )
    # Whoever asks TensorFlow for more than errors sees all of its messages.
    if tensorflow_noise.is_quiet(level):
        os.environ[tensorflow_noise.LOG_LEVEL] = level
        stderr_filter.install()


_begin()
