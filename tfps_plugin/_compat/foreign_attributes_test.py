"""Tests that only `_compat` uses private attributes of other packages.

`import-linter` sees imports. These tests look at attributes of objects.
"""

import ast
import collections
import pathlib
from collections.abc import Iterator

import pytest

import tfps_plugin

_PACKAGE = pathlib.Path(tfps_plugin.__file__).parent
_COMPAT = "tfps_plugin._compat"
_FILES = [
    path
    for path in sorted(_PACKAGE.rglob("*.py"))
    if not path.name.endswith("_test.py") and path.name != "conftest.py"
]
# Private attributes that both our objects and Keras's have.
_SHARED = {"_iterations", "_value"}
# Attributes of Python itself.
_PYTHON = {"_exit", "_getframe", "_is_owned"}


def _trees() -> dict[pathlib.Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in _FILES}


def _name(path: pathlib.Path) -> str:
    return path.relative_to(_PACKAGE).as_posix()


def _others(tree: ast.Module) -> set[str]:
    """Returns names that refer to objects of other packages."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                alias.asname or alias.name.partition(".")[0]
                for alias in node.names
                if not alias.name.startswith("tfps_plugin")
            }
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.startswith(_COMPAT) or not module.startswith(
                "tfps_plugin"
            ):
                names |= {alias.asname or alias.name for alias in node.names}
    # Aliases: `base = keras.Model`.
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _root(node.value) in names:
            names |= {
                target.id
                for target in node.targets
                if isinstance(target, ast.Name)
            }
    return names


def _root(node: ast.expr) -> str | None:
    """Returns the name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Yields assignments to attributes of other packages."""
    others = _others(tree)
    for node in ast.walk(tree):
        owner: ast.expr | None = None
        if isinstance(node, ast.Attribute) and not isinstance(
            node.ctx, ast.Load
        ):
            owner = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "setattr",
            "delattr",
        ):
            owner = node.args[0]
        if owner is not None and _root(owner) in others:
            yield f"line {owner.lineno}: {ast.unparse(node)}"


def _own_names(tree: ast.Module) -> set[str]:
    """Returns names of attributes and functions that a module defines."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and _root(node) == "self"
        ):
            names.add(node.attr)
    return names


def _in_methods(tree: ast.Module) -> set[int]:
    """Returns the `id` of every node inside a method, where `self` is ours."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        for inner in ast.walk(method)
    }


def _private(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Yields accesses to private attributes of other packages' objects."""
    in_methods = _in_methods(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, name = node.value, node.attr
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("getattr", "hasattr", "setattr")
            and isinstance(node.args[1], ast.Constant)
        ):
            owner, name = node.args[0], str(node.args[1].value)
        else:
            continue
        if not name.startswith("_") or name.startswith(("__", "_tfps")):
            continue
        is_self = ast.unparse(owner) in ("self", "cls", "super()") and (
            id(node) in in_methods
        )
        if not is_self and (name not in own - _SHARED) and name not in _PYTHON:
            yield f"line {owner.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", _FILES, ids=_name)
def test_only_the_table_replaces_attributes(path: pathlib.Path) -> None:
    if _name(path) == "_compat/patches.py":
        return
    found = list(_assigned(ast.parse(path.read_text())))
    assert not found, (
        f"{_name(path)} assigns to an attribute of another package: {found}; "
        "make it a row of _compat/patch_table.py"
    )


def test_private_attributes_are_touched_in_compat_only() -> None:
    trees = _trees()
    own = set().union(
        *(
            _own_names(tree)
            for path, tree in trees.items()
            if not _name(path).startswith("_compat/")
        )
    )
    found = {
        _name(path): list(_private(tree, own))
        for path, tree in trees.items()
        if not _name(path).startswith("_compat/")
    }
    assert not any(found.values()), (
        "private attributes of Keras's and TensorFlow's objects are for "
        f"_compat: { {name: lines for name, lines in found.items() if lines} }"
    )


@pytest.mark.parametrize(
    "source",
    [
        "import keras\nkeras.Model.fit = None",
        "import tensorflow as tf\nsetattr(tf.Module, 'name', 1)",
        "from keras.src import losses\nlosses.Loss.call = lambda *_: 0",
        "from tfps_plugin._compat import keras as k\nk.Variable.assign = 1",
        "import keras\nbase = keras.Model\nbase.fit = None",
        "import sys\nsys.excepthook = print",
        "import keras\ndel keras.Model.fit",
        "import keras\nkeras.version += 1",
    ],
)
def test_an_assignment_is_found(source: str) -> None:
    assert len(list(_assigned(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A'] = '1'",
        "import keras\nmodel = keras.Model()\nmodel.name = 'm'",
        "from tfps_plugin.variables import wire\nwire.dtype = None",
    ],
)
def test_other_assignments_are_not(source: str) -> None:
    assert not list(_assigned(ast.parse(source)))


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("optimizer._momentums", 1),
        ("getattr(model, '_distribute_strategy', None)", 1),
        ("variable._value", 1),
        ("def replaced(self): return self._layers", 1),
        ("class Ours:\n  def f(self): return self._layers", 0),
        ("mine._ours", 0),
        ("mine.__class__", 0),
        ("sys._getframe()", 0),
    ],
)
def test_a_private_attribute_is_found(source: str, number: int) -> None:
    found = collections.Counter(_private(ast.parse(source), {"_ours"}))
    assert found.total() == number
