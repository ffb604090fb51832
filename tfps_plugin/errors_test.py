"""The tree of exceptions is the one that its page shows."""

import inspect
import pickle
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from tfps_plugin import errors

_LINE = re.compile(r"^    ([│├└─ ]*)(\w+Error)(?: \((\w+)\))?", re.MULTILINE)
_CLASSES = {
    name: cls
    for name, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__ == errors.__name__
}


def _shown() -> dict[str, tuple[int, str | None]]:
    """Each class of the page, with its depth and its second base."""
    assert errors.__doc__ is not None
    return {
        name: (len(branch) // 4, builtin or None)
        for branch, name, builtin in _LINE.findall(errors.__doc__)
    }


def test_every_class_is_in_the_tree_where_it_is() -> None:
    shown = _shown()
    assert set(shown) == set(_CLASSES)
    for name, (depth, builtin) in shown.items():
        ours = [c for c in _CLASSES[name].__mro__ if c in _CLASSES.values()]
        assert len(ours) == depth + 1, name
        if builtin is not None:
            assert builtin in [c.__name__ for c in _CLASSES[name].__bases__]


@pytest.mark.parametrize("cls", _CLASSES.values())
def test_what_may_be_tried_again_has_no_lasting_cause(
    cls: type[errors.TfpsError],
) -> None:
    # Every task may come back but a ps, whose values are gone.
    comes_back = (
        errors.ClusterStartTimeoutError,
        errors.TaskUnreachableError,
        errors.WorkerLostError,
        # The first try has built it.
        errors.OptimizerNotBuiltError,
    )
    assert cls.retryable == issubclass(cls, comes_back)


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.ParameterServerLostError, tf.errors.UNAVAILABLE),
        (errors.WorkerLostError, tf.errors.UNAVAILABLE),
        (errors.ClosureCancelledError, tf.errors.CANCELLED),
    ],
)
def test_what_tensorflow_has_a_name_for_is_caught_by_it(
    cls: type[Exception], code: int
) -> None:
    known_as = {
        tf.errors.UNAVAILABLE: tf.errors.UnavailableError,
        tf.errors.CANCELLED: tf.errors.CancelledError,
    }[code]
    with pytest.raises(known_as, match="ps 0 is gone") as raised:
        raise cls("ps 0 is gone")
    error = raised.value
    assert str(error) == error.message == "ps 0 is gone"
    assert error.error_code == code
    assert error.op is None
    assert error.node_def is None
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == "ps 0 is gone"


def test_autograph_raises_them_as_themselves() -> None:
    @tf.function
    def read() -> None:
        raise errors.ParameterServerLostError("ps 0 is gone")

    with pytest.raises(errors.ParameterServerLostError, match="ps 0 is gone"):
        read()


def test_the_tree_needs_no_tensorflow() -> None:
    program = (
        "import sys; from tfps_plugin import errors; errors.TaskStartError; "
        "assert 'tensorflow' not in sys.modules; errors.WorkerLostError; "
        "assert 'tensorflow' in sys.modules; dir(errors); "
        "from tfps_plugin.errors import ClosureCancelledError"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="NoSuchError"):
        _ = errors.NoSuchError
