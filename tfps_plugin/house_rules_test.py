"""Rules of the house that no other tool checks."""

import ast
import pathlib

import pytest

import tfps_plugin

_PACKAGE = pathlib.Path(tfps_plugin.__file__).parent
_REPOSITORY = _PACKAGE.parent
_AIM_LINES = 300
_LIMIT_LINES = 800
# About a dozen; more means that rooms are missing.
_LIMIT_MODULES = 15
# Rooms are yet to be made there.
_LARGE_FOLDERS = {"tfps_plugin/_compat"}

_MODULES = sorted(
    path
    for folder in ("tfps_plugin", "integration_tests", "examples")
    for path in (_REPOSITORY / folder).rglob("*.py")
)
_PACKAGES = sorted(
    path
    for path in _PACKAGE.rglob("*")
    if path.is_dir() and any(path.glob("*.py"))
)


def _name(path: pathlib.Path) -> str:
    return str(path.relative_to(_REPOSITORY))


@pytest.mark.parametrize("path", _MODULES, ids=_name)
def test_modules_are_short(path: pathlib.Path) -> None:
    lines = len(path.read_text().splitlines())
    if lines > _AIM_LINES:
        print(f"{_name(path)}: {lines} lines, {_AIM_LINES} are the aim")
    assert lines < _LIMIT_LINES, (
        f"{_name(path)} has {lines} lines, {_LIMIT_LINES} are too many: "
        "split it by nouns"
    )


@pytest.mark.parametrize("path", _PACKAGES, ids=_name)
def test_packages_list_their_files(path: pathlib.Path) -> None:
    module = ast.parse((path / "__init__.py").read_text())
    docstring = ast.get_docstring(module) or ""
    missing = [
        file.name
        for file in sorted(path.iterdir())
        if (file.suffix == ".py" or file in _PACKAGES)
        and file.name != "__init__.py"
        and not file.name.endswith("_test.py")
        and file.stem not in docstring
    ]
    assert not missing, (
        f"the docstring of {_name(path)}/__init__.py is the map of the "
        f"folder; it does not mention {missing}"
    )


@pytest.mark.parametrize("path", _PACKAGES, ids=_name)
def test_packages_are_small(path: pathlib.Path) -> None:
    modules = [
        file.name
        for file in path.glob("*.py")
        if not file.name.endswith("_test.py")
    ]
    is_small = len(modules) <= _LIMIT_MODULES
    assert is_small != (_name(path) in _LARGE_FOLDERS), (
        f"{_name(path)} has {len(modules)} modules, {_LIMIT_MODULES} are the "
        "limit: make rooms in it"
    )


@pytest.mark.parametrize("path", _PACKAGES, ids=_name)
def test_packages_import_nothing_by_themselves(path: pathlib.Path) -> None:
    module = ast.parse((path / "__init__.py").read_text())
    imports = [
        ast.unparse(node)
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not imports, f"{_name(path)}/__init__.py is to stay empty of imports"
