"""Rules of the house that no other tool checks."""

import ast
import configparser
import pathlib
import re
import subprocess

import pytest

import tfps_plugin

_PACKAGE = pathlib.Path(tfps_plugin.__file__).parent
_REPOSITORY = _PACKAGE.parent
# Besides hidden files.
_TOP_LEVEL = {
    *("docs", "examples", "integration_tests", "tfps_plugin"),
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE"),
    *("MANIFEST.in", "README.md", "SECURITY.md", "pyproject.toml"),
    "setup.cfg",
}
_AIM_LINES = 300
_LIMIT_LINES = 800
# About a dozen; more means that rooms are missing.
_LIMIT_MODULES = 15
# Words that begin a clause where a docstring needs a noun phrase or a verb.
_CLAUSE_WORDS = {
    *("How", "That", "What", "When", "Where", "Whether", "Which", "Who"),
    *("Whose", "Why"),
}

# Module-level names with state, which all jobs of a process share. Everything
# else belongs to a connection (`Connection.part`), a strategy or a coordinator.
_STATEFUL_NAMES = {
    # TensorFlow and Python have it once for each process.
    "tfps_plugin/_compat/runtime/tensorflow_functions.py": {
        "_roll_call",
        "_turns",
    },
    "tfps_plugin/_compat/runtime/tensorflow_cluster.py": {"_updates"},
    "tfps_plugin/cluster/chief/connection.py": {"_present"},
    "tfps_plugin/cluster/chief/this_process.py": {"state"},
    # Keras and TensorFlow are patched once for each process.
    "tfps_plugin/_compat/patches.py": {"_process"},
    # The trace of a thread that updates without a function around it.
    "tfps_plugin/variables/step_trace.py": {"_eager"},
    # Models of the process alone: each is warned about once.
    "tfps_plugin/training/patches/scope_check.py": {"local_models"},
    # Of each model, on a cluster or not, the changes since its last export.
    "tfps_plugin/training/exports/exporters.py": {"_exporters"},
}
# Constructors of objects that change.
_MUTABLE = {
    "Counter",
    "OrderedDict",
    "SerialCalls",
    "WeakKeyDictionary",
    "WeakSet",
    "WeakValueDictionary",
    "count",
    "defaultdict",
    "deque",
    "dict",
    "list",
    "set",
}
_MUTATORS = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setdefault",
    "update",
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


def test_the_top_level_has_what_it_should() -> None:
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if known.returncode != 0:
        pytest.skip("no git repository")
    top = {line.partition("/")[0] for line in known.stdout.splitlines()}
    unknown = sorted(
        name for name in top - _TOP_LEVEL if not name.startswith(".")
    )
    assert not unknown, f"{unknown} belong into a folder"


def test_the_citation_is_of_this_version() -> None:
    fields = dict(
        re.findall(
            r"^([a-z-]+): *(.*)$",
            (_REPOSITORY / "CITATION.cff").read_text(),
            re.MULTILINE,
        )
    )
    # Those that the format demands, version 1.2.0 of its schema.
    assert {"authors", "cff-version", "message", "title"} <= set(fields)
    settings = configparser.ConfigParser()
    settings.read(_REPOSITORY / "setup.cfg")
    assert fields["version"] == settings["metadata"]["version"]
    assert fields["license"] == settings["metadata"]["license"]


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
    assert len(modules) <= _LIMIT_MODULES, (
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
    assert not clauses, (
        "docstrings that begin with a clause; expected a noun phrase or a verb "
        "in the third person:\n" + "\n".join(clauses)
    )


def _docstrings(path: pathlib.Path) -> list[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = (
        ast.get_docstring(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented)
    )
    return [docstring for docstring in docstrings if docstring]


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted(_PACKAGE.rglob("*.py"))
        if not path.name.endswith("_test.py") and path.name != "conftest.py"
    ],
    ids=_name,
)
def test_modules_keep_no_state(path: pathlib.Path) -> None:
    found = _stateful_names(ast.parse(path.read_text()))
    unknown = found - _STATEFUL_NAMES.get(_name(path), set())
    assert not unknown, (
        f"{_name(path)} keeps state in {sorted(unknown)}, which a second job "
        "in the process shares: make it a part of the connection"
    )


def test_state_of_modules_is_found() -> None:
    source = """
import weakref
CONSTANT = (1, 2)
TABLE = {"a": 1}
_cache: dict = {}
_known = weakref.WeakSet()
_current = None
_rows = []
_lock = Lock()
class Counter: ...
_counter = Counter()

def change():
    global _current
    _current = 1
    _cache["a"] = 1
    _rows.append(1)
    CONSTANT.count(1)
"""
    assert _stateful_names(ast.parse(source)) == {
        "_cache",
        "_counter",
        "_current",
        "_known",
        "_rows",
    }


def _stateful_names(module: ast.Module) -> set[str]:
    """Returns the names of a module that it changes, or that can change.

    Thread-locals and locks are none: a thread has one job at a time, and a lock
    knows nothing.
    """
    classes = {
        node.name for node in module.body if isinstance(node, ast.ClassDef)
    }
    made_by = {
        target.id: _constructor(statement.value)
        for statement in module.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in _targets(statement)
        if isinstance(target, ast.Name)
    }
    found = {
        name
        for name, constructor in made_by.items()
        if constructor in _MUTABLE
        or (constructor in classes and name != name.upper())
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            found.update(
                _root(target)
                for target in _targets(node)
                if isinstance(target, ast.Attribute | ast.Subscript)
            )
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MUTATORS
        ):
            found.add(_root(node.func))
    return {
        name for name in found if name in made_by and made_by[name] != "local"
    }


def _targets(
    statement: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete,
) -> list[ast.expr]:
    if isinstance(statement, ast.Assign | ast.Delete):
        return statement.targets
    return [statement.target]


def _constructor(value: ast.expr | None) -> str:
    """Returns the last name of what is called to make a value."""
    if not isinstance(value, ast.Call):
        return ""
    function = value.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _root(node: ast.expr) -> str:
    """Returns the name that attributes or items are taken from."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "floor",
    [path for path in _PACKAGES if path.parent == _PACKAGE],
    ids=_name,
)
def test_a_floor_has_one_logger(floor: pathlib.Path) -> None:
    names = {
        ast.unparse(node.args[0])
        for path in floor.rglob("*.py")
        if not path.name.endswith("_test.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "getLogger"
        and node.args
    }
    # A task server and the JSON lines set up the logging of a whole process.
    names -= {"tfps_plugin.__name__", "_PACKAGE"}
    assert names <= {repr(f"tfps_plugin.{floor.name}")}
