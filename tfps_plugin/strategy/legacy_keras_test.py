import sys
import types
from collections.abc import Callable

import pytest

from tfps_plugin import errors
from tfps_plugin.strategy import legacy_keras


def _function_of(module: str) -> Callable[[Callable[[], None]], None]:
    """Returns a function that calls another, from a module of that name."""
    namespace: dict[str, object] = {"__name__": module}
    exec("def make(variable):\n    variable()\n", namespace)
    make = namespace["make"]
    assert callable(make)
    return make


def _create() -> None:
    legacy_keras.refuse("dense/kernel")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf_keras", types.ModuleType("tf_keras"))


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("module", ["tf_keras", "tf_keras.src.engine.training"])
def test_variables_of_tf_keras_are_refused_by_name(module: str) -> None:
    make = _function_of(module)
    with pytest.raises(errors.UnsupportedError) as raised:
        make(_create)
    for part in ("Keras 3 only", "'dense/kernel'", f"created by {module}."):
        assert part in str(raised.value)


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("module", ["keras.src.layers", "tf_keras_of_mine"])
def test_those_of_others_are_not(module: str) -> None:
    _function_of(module)(_create)


def test_what_is_not_loaded_makes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    _function_of("tf_keras.src")(_create)
