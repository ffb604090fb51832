"""Tests of the parts of Keras's optimizers that our own `apply` uses."""

from collections.abc import Sequence
from typing import Any

import keras
import pytest

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat


def _run(optimizer: Any, seen: list[Any]) -> keras.Variable:
    variable = keras.Variable([1.0, 2.0])
    optimizer.build([variable])

    def update(pairs: Sequence[Any], learning_rate: Any) -> None:
        seen.append((pairs, float(learning_rate)))

    compat.run_update(optimizer, update, ["gradient"], [variable])
    return variable


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.Nadam])
def test_an_update_gets_values_and_the_learning_rate(make: Any) -> None:
    seen: list[Any] = []
    optimizer = make(0.5)
    variable = _run(optimizer, seen)
    ((pairs, rate),) = seen
    assert rate == 0.5
    ((gradient, value),) = pairs
    assert gradient == "gradient"
    assert value is variable.value


def test_nadam_counts_its_product_before_the_update() -> None:
    optimizer = keras.optimizers.Nadam(beta_1=0.9)
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    products: list[float] = []

    def update(*_: Any) -> None:
        products.append(float(compat.momentum_schedule_of(optimizer)))

    compat.run_update(optimizer, update, ["gradient"], [variable])
    assert products == pytest.approx([0.9 * (1 - 0.5 * 0.96)])


class _Around(keras.optimizers.SGD):
    """Does additional work before and after the loop."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.__dict__["seen"] = seen

    def _backend_update_step(
        self, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        self.seen.append("before")
        super()._backend_update_step(
            [f"my {gradient}" for gradient in grads],
            trainable_variables,
            2 * learning_rate,
        )
        self.seen.append("after")


def test_an_own_step_runs_around_the_update() -> None:
    seen: list[Any] = []
    _run(_Around(seen), seen)
    before, (pairs, rate), after = seen
    assert (before, after) == ("before", "after")
    assert pairs[0][0] == "my gradient"
    assert rate == pytest.approx(0.02)


def test_an_own_reduction_is_called() -> None:
    class Reducing(keras.optimizers.SGD):
        def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
            return [(f"reduced {g}", v) for g, v in grads_and_vars]

    seen: list[Any] = []
    _run(Reducing(), seen)
    assert seen[0][0][0][0] == "reduced gradient"


def test_the_loop_is_keras_s_again_afterwards() -> None:
    optimizer = keras.optimizers.Nadam()
    variable = keras.Variable([1.0])
    optimizer.build([variable])

    def update(*_: Any) -> None:
        raise KeyError("update")

    with pytest.raises(KeyError, match="update"):
        compat.run_update(optimizer, update, ["gradient"], [variable])
    assert "_distributed_tf_update_step" not in vars(optimizer)


def test_an_own_loop_is_refused() -> None:
    class Looping(keras.optimizers.SGD):
        def _distributed_tf_update_step(self, *args: Any) -> None:
            pass

    with pytest.raises(errors.UnsupportedError, match="_distributed_tf"):
        compat.require_no_overrides(Looping())
    compat.require_no_overrides(keras.optimizers.Nadam())
