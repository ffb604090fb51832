"""Tests that keras.io's models with custom steps train as in one process."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

from . import keras_io_programs as programs

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_BATCH = 8


def _weights(model: keras.Model) -> dict[str, Any]:
    return {
        f"{number} {variable.name}": keras.ops.convert_to_numpy(variable)
        for number, variable in enumerate(model.trainable_variables)
    }


def _assert_same(ours: dict[str, Any], alone: dict[str, Any]) -> None:
    assert list(ours) == list(alone)
    for name, value in alone.items():
        np.testing.assert_allclose(
            ours[name], value, rtol=2e-3, atol=2e-5, err_msg=name
        )


@pytest.fixture
def sharded(
    strategies: dict[str, tfps.ParameterServerStrategy],
) -> tfps.ParameterServerStrategy:
    return strategies["sharded"]


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_a_program_of_keras_io(
    sharded: tfps.ParameterServerStrategy, name: str
) -> None:
    make, data = programs.PROGRAMS[name]
    alone = make()
    expected = alone.fit(
        data, batch_size=_BATCH, epochs=2, shuffle=False, verbose=0
    ).history
    with sharded.scope():
        ours = make()
    history = ours.fit(
        data, batch_size=_BATCH, epochs=2, shuffle=False, verbose=0
    ).history
    _assert_same(_weights(ours), _weights(alone))
    _assert_same(history, expected)


def test_workers_read_what_the_step_takes_apart(
    sharded: tfps.ParameterServerStrategy,
) -> None:
    """Evaluation comes first: the model's own test step builds it."""

    def dataset(context: Any) -> tf.data.Dataset:
        del context
        return tf.data.Dataset.from_tensor_slices(programs.RATINGS).batch(
            _BATCH
        )

    alone = programs.towers()
    expected = alone.evaluate(dataset(None), verbose=0, return_dict=True)
    with sharded.scope():
        ours = programs.towers()
    creator = tfps.DatasetCreator(dataset)
    found = ours.evaluate(creator, verbose=0, return_dict=True)
    _assert_same(found, expected)
    history = ours.fit(
        creator, epochs=2, validation_data=creator, verbose=0
    ).history
    expected = alone.fit(
        dataset(None), epochs=2, validation_data=dataset(None), verbose=0
    ).history
    _assert_same(history, expected)
    assert int(ours.optimizer.iterations) == 10


def test_optimizers_from_outside_the_scope_are_made_again(
    sharded: tfps.ParameterServerStrategy,
) -> None:
    given = keras.optimizers.Adam(0.0625)
    with sharded.scope():
        model = programs.gan()
        # Its metrics are made here, too.
        model.compile(given, keras.optimizers.Adam(0.01), model.loss_fn)
    model.fit(programs.IMAGES, batch_size=_BATCH, verbose=0)
    assert model.d_optimizer is not given
    assert float(model.d_optimizer.learning_rate) == 0.0625
    assert int(model.d_optimizer.iterations) == 5


def test_an_optimizer_built_outside_the_scope_is_refused(
    sharded: tfps.ParameterServerStrategy,
) -> None:
    with sharded.scope():
        model = programs.gan()
    given = keras.optimizers.Adam(0.01)
    given.build([keras.Variable(np.zeros(2, "float32"))])
    model.d_optimizer = given
    with pytest.raises(tfps.errors.VariableCreationError, match="optimizer="):
        model.fit(programs.IMAGES, batch_size=_BATCH, verbose=0)
    assert int(model.g_optimizer.iterations) == 0


def test_without_call_evaluate_says_what_keras_says(
    sharded: tfps.ParameterServerStrategy,
) -> None:
    with sharded.scope():
        model = programs.vae()
    with pytest.raises(NotImplementedError, match="call"):
        model.evaluate(programs.IMAGES, batch_size=_BATCH, verbose=0)
