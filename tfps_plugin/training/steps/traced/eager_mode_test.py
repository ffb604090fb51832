"""Tests of settings that ask for eager steps."""

import types

import tensorflow as tf

from tfps_plugin.training.steps.traced.eager_mode import runs_eagerly


def test_the_model_or_the_program_asks_for_it() -> None:
    compiled = types.SimpleNamespace(run_eagerly=False)
    eager = types.SimpleNamespace(run_eagerly=True)
    assert [runs_eagerly(each) for each in (compiled, eager)] == [False, True]
    tf.config.run_functions_eagerly(True)
    try:
        assert runs_eagerly(compiled)
    finally:
        tf.config.run_functions_eagerly(False)
