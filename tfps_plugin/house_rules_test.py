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
# Words that begin a clause where a docstring needs a noun phrase or a verb.
_CLAUSE_WORDS = {
    *("How", "That", "What", "When", "Where", "Whether", "Which", "Who"),
    *("Whose", "Why"),
}
# Their docstrings are yet to be rewritten. The set only shrinks.
_PACKAGES_IN_OLD_PROSE = {
    "examples",
    "integration_tests",
    "tfps_plugin/_compat",
    "tfps_plugin/cluster",
    "tfps_plugin/coordinator",
    "tfps_plugin/strategy",
    "tfps_plugin/training",
    "tfps_plugin/transport",
    "tfps_plugin/variables",
}

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


def _package_of(path: pathlib.Path) -> str:
    """Returns the package of a module in the list above."""
    parts = path.relative_to(_REPOSITORY).parts[:-1]
    return "/".join(parts[:2] if path.is_relative_to(_PACKAGE) else parts[:1])


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


@pytest.mark.parametrize("package", sorted(set(map(_package_of, _MODULES))))
def test_docstrings_begin_with_a_noun_phrase_or_a_verb(package: str) -> None:
    clauses = [
        f"{_name(path)}: {docstring.splitlines()[0]}"
        for path in _MODULES
        if _package_of(path) == package
        for docstring in _docstrings(path)
        if docstring.split(maxsplit=1)[0] in _CLAUSE_WORDS
    ]
    is_new_prose = not clauses
    assert is_new_prose != (package in _PACKAGES_IN_OLD_PROSE), (
        f"take {package} off the list of packages in old prose"
        if is_new_prose
        else "docstrings that begin with a clause; expected a noun phrase or "
        "a verb in the third person:\n" + "\n".join(clauses)
    )


def _docstrings(path: pathlib.Path) -> list[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = (
        ast.get_docstring(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented)
    )
    return [docstring for docstring in docstrings if docstring]
