"""Tests of the mechanism of patches, on a module of the test."""

import logging
import sys
import types
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import patches as process_patches
from tfps_plugin._compat.patches import ANY_PARAMETERS
from tfps_plugin._compat.patches import Patch
from tfps_plugin._compat.patches import Patches

_FOREIGN = "keras_of_the_test"
_WRAPPERS = "tfps_plugin.wrappers_of_the_test"


class _Base:
    def inherited(self) -> str:
        return "inherited"


class _Kind(_Base):
    def own(self, value: Any, other: Any = None) -> Any:
        return value


def _marked(original: Callable[..., Any] | None) -> Callable[..., Any]:
    def replacement(*args: Any) -> Any:
        return "replaced", original and original(*args)

    return replacement


@pytest.fixture(autouse=True)
def foreign(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = types.ModuleType(_FOREIGN)
    module.Kind = type("Kind", (_Base,), {"own": _Kind.own})
    module.function = lambda x: x
    module.__version__ = "4.5"
    monkeypatch.setitem(sys.modules, _FOREIGN, module)
    monkeypatch.setattr(
        "tfps_plugin._compat.patches._READ_ON",
        {_FOREIGN: "the Keras of this test"},
    )
    wrappers: Any = types.ModuleType(_WRAPPERS)
    wrappers.marked = _marked
    monkeypatch.setitem(sys.modules, _WRAPPERS, wrappers)
    return module


def _patch(
    name: str, parameters: str | None = ANY_PARAMETERS, **options: Any
) -> Patch:
    return Patch(
        f"{_FOREIGN}:{name}",
        parameters,
        "wrappers_of_the_test:marked",
        "It is a test.",
        **options,
    )


def test_what_is_replaced_is_put_back(foreign: Any) -> None:
    own, function = foreign.Kind.own, foreign.function
    patches = Patches()
    rows = [
        _patch("Kind.own", "self, value"),
        _patch("Kind.inherited", "self"),
        _patch("Kind.added", None),
        _patch("function", "x"),
    ]
    patches.apply(rows)
    assert patches.applied == tuple(rows)
    assert foreign.Kind().own(3) == ("replaced", 3)
    assert foreign.Kind().inherited() == ("replaced", "inherited")
    assert foreign.Kind().added() == ("replaced", None)
    assert foreign.function(4) == ("replaced", 4)
    assert _Base().inherited() == "inherited"
    patches.undo()
    assert patches.applied == ()
    assert foreign.Kind.own is own
    assert foreign.function is function
    assert not {"added", "inherited"} & set(vars(foreign.Kind))


def test_a_patch_is_applied_once(foreign: Any) -> None:
    patches = Patches()
    for _ in range(2):
        patches.apply([_patch("function")])
    assert foreign.function(4) == ("replaced", 4)
    patches.undo()
    patches.undo()
    assert foreign.function(4) == 4
    patches.apply([_patch("function")])
    assert foreign.function(4) == ("replaced", 4)


def test_the_latest_is_undone_first(foreign: Any) -> None:
    first, second = Patches(), Patches()
    original = foreign.function
    first.apply([_patch("function")])
    between = foreign.function
    second.apply([_patch("function")])
    assert foreign.function(4) == ("replaced", ("replaced", 4))
    second.undo()
    assert foreign.function is between
    first.undo()
    assert foreign.function is original
    # Also in one table: the class after a replaced attribute of it.
    kind = foreign.Kind
    first.apply([_patch("Kind"), _patch("Kind.own")])
    first.undo()
    assert foreign.Kind is kind
    assert foreign.Kind().own(3) == 3


def test_what_somebody_else_has_replaced_stays(
    foreign: Any, caplog: pytest.LogCaptureFixture
) -> None:
    patches = Patches()
    patches.apply([_patch("function")])
    foreign.function = theirs = _marked(foreign.function)
    with caplog.at_level(logging.WARNING):
        patches.undo()
    assert foreign.function is theirs
    assert f"{_FOREIGN}:function" in caplog.text


@pytest.mark.parametrize(
    ("name", "parameters", "received"),
    [
        ("Kind.own", "self, values", "(self, value: Any, other: Any = None)"),
        ("Kind.own", "self, value, other, more", "(self, value: Any, "),
        # A caller must pass a parameter that the wrapper does not have.
        ("Kind.own", "self", "(self, value: Any, other: Any = None)"),
        ("Kind.missing", "self", "no such attribute"),
        ("Missing.own", "self", "no such module or class"),
        ("Kind.own", None, "<function _Kind.own"),
    ],
)
def test_another_release_is_refused(
    foreign: Any, name: str, parameters: str | None, received: str
) -> None:
    patches = Patches()
    original = foreign.function
    with pytest.raises(errors.UnsupportedError) as caught:
        patches.apply([_patch("function"), _patch(name, parameters)])
    message = str(caught.value)
    assert f"{_FOREIGN}:{name}" in message
    assert f"{_FOREIGN} 4.5" in message
    assert "the Keras of this test" in message
    assert (parameters or "no attribute of that name") in message
    assert f"Received: {received}" in message
    # Nothing was replaced, not even the patch that fits.
    assert foreign.function is original
    assert patches.applied == ()


@pytest.mark.parametrize("parameters", ["self, value", "self, value, other"])
def test_parameters_that_a_caller_may_leave_out_are_none_of_its_business(
    parameters: str,
) -> None:
    Patches().apply([_patch("Kind.own", parameters)])


@pytest.fixture
def unpatched() -> Iterator[None]:
    """Undoes all patches for a test, whatever ran in this process."""
    applied = process_patches.applied()
    process_patches.undo()
    yield
    process_patches.apply(applied)


@pytest.mark.usefixtures("unpatched")
def test_what_tensorflow_dispatches_to_is_replaced() -> None:
    row = Patch(
        "tensorflow.python.ops.ragged.ragged_gather_ops:gather",
        "params, indices",
        "training.patches.lookups:ragged_gather",
        "It is a test.",
        api="tensorflow:gather",
    )
    ids = tf.ragged.constant([[1], [0, 1]])
    patches = Patches()
    for change in (patches.undo, lambda: patches.apply([row]), patches.undo):
        change()
        rows = tf.gather(tf.constant([5, 6]), ids)
        assert rows.to_list() == [[6], [5, 6]]
