"""The tree of exceptions is the one that its page shows."""

import inspect
import re

import pytest

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
    # Everybody may come back but a ps, whose values are gone.
    comes_back = (
        errors.ClusterStartTimeoutError,
        errors.TaskUnreachableError,
        errors.WorkerLostError,
    )
    assert cls.retryable == issubclass(cls, comes_back)
