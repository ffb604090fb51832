import keras

from tfps_plugin.training import step_build


def test_the_optimizers_of_a_model_wherever_it_has_them() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    compiled, own, first, second, named = (
        keras.optimizers.SGD() for _ in range(5)
    )
    model.compile(compiled)
    model.own = own
    model.several = [first, second, compiled]
    model.by_name = {"critic": named, "rate": 0.1}
    found = step_build.optimizers_of(model)
    assert found[0] is compiled
    assert {id(each) for each in found} == {
        id(each) for each in (compiled, own, first, second, named)
    }
    assert len(found) == 5
