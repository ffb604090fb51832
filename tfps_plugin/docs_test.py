"""Tests that names in docs/ exist: files, classes, functions and tests.

Pages write a file as `coordinator/lanes/lane.py`, a class or function as
`lane.Lane`, `Lane._make` or `tfps.init`, a test by its bare name. Fenced blocks
are not looked at.
"""

import ast
import builtins
import functools
import pathlib
import re

import pytest

_PACKAGE = pathlib.Path(__file__).parent
_REPOSITORY = _PACKAGE.parent
_PAGES = sorted((_REPOSITORY / "docs").rglob("*.md"))

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#]+)")
_FILE = re.compile(r"[\w.-]*/[\w./-]*|[\w-]+\.(py|md|cfg|toml)")
_DOTTED = re.compile(r"\w+(\.\w+)+")
_CLASS = re.compile(r"_?[A-Z]\w*[a-z]\w*")
_CONSTANT = re.compile(r"_[A-Z][A-Z0-9_]*")
_TEST = re.compile(r"test_\w+")

# Other people's, by the first part of the name or by the whole of it.
_FOREIGN_ROOTS = {
    *(
        "extended",
        "keras",
        "keras_rs",
        "model",
        "optimizer",
        "strategy",
        "sys",
        "tensorflow",
        "tf",
    ),
}
_FOREIGN_NAMES = {
    "BackupAndRestore",
    # Kubernetes, Slurm.
    *("Job", "JobRequeue", "JobSet", "NetworkPolicy", "PreemptMode"),
    *("Service", "TFJob"),
    "ModelCheckpoint",
    "UnavailableError",
    "test_step",
}


@functools.cache
def _members() -> dict[str, set[str]]:
    """Returns the names that each module and class of the package defines."""
    members: dict[str, set[str]] = {}
    for path in _PACKAGE.rglob("*.py"):
        if path.name.endswith("_test.py"):
            continue
        tree = ast.parse(path.read_text())
        members.setdefault(path.stem, set()).update(_defined(tree.body))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                members.setdefault(node.name, set()).update(
                    _defined(node.body), _own_attributes(node)
                )
    front_door = ast.parse((_PACKAGE / "__init__.py").read_text())
    (public,) = (
        ast.literal_eval(node.value)
        for node in front_door.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "__all__"
    )
    members["tfps"] = set(public)
    # Packages, and so their loggers.
    members["tfps_plugin"] = {path.stem for path in _PACKAGE.iterdir()}
    return members


def _defined(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(ast.unparse(target) for target in node.targets)
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
        elif isinstance(node, ast.ImportFrom):
            # `import x as x` hands a name on.
            names.update(a.name for a in node.names if a.asname == a.name)
    return names


def _own_attributes(node: ast.ClassDef) -> set[str]:
    """Returns the attributes of `self` that methods of a class assign."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and ast.unparse(each.value) == "self"
    }


@functools.cache
def _tests() -> set[str]:
    names = set()
    for folder in ("tfps_plugin", "integration_tests", "examples"):
        for path in (_REPOSITORY / folder).rglob("*_test.py"):
            body = ast.parse(path.read_text()).body
            names |= _defined(body)
            for node in body:
                if isinstance(node, ast.ClassDef):
                    names |= _defined(node.body)
    return names


def _exists(name: str) -> bool:
    """Returns whether a quoted text is no name, or names something."""
    if name in _FOREIGN_NAMES or name.partition(".")[0] in _FOREIGN_ROOTS:
        return True
    members = _members()
    if _FILE.fullmatch(name):
        return (_PACKAGE / name).exists() or (_REPOSITORY / name).exists()
    if _DOTTED.fullmatch(name):
        owner, *rest = name.split(".")
        for each in rest:
            if each not in members.get(owner, ()):
                return False
            owner = each
        return True
    if _TEST.fullmatch(name):
        return name in _tests()
    if _CLASS.fullmatch(name):
        return name in members or hasattr(builtins, name)
    if _CONSTANT.fullmatch(name):
        return any(name in names for names in members.values())
    return True


@pytest.mark.parametrize(
    "page", _PAGES, ids=lambda page: page.relative_to(_REPOSITORY).as_posix()
)
def test_what_is_named_exists(page: pathlib.Path) -> None:
    text = _FENCE.sub("", page.read_text())
    missing = [name for name in _QUOTED.findall(text) if not _exists(name)]
    missing += [
        link
        for link in _LINK.findall(text)
        if "://" not in link
        and not (page.parent / link).exists()
        # The site makes it from the programs.
        and link != "examples.md"
    ]
    assert not missing, f"{page.name} names what is not there: {missing}"


@pytest.mark.parametrize(
    "name",
    [
        "coordinator/nothing.py",
        "lane.Nothing",
        "Lane.nothing",
        "tfps.Nothing",
        "NothingAtAll",
        "_NO_SUCH_CONSTANT",
        "test_that_is_not_there",
    ],
)
def test_what_does_not_exist_is_found(name: str) -> None:
    assert not _exists(name)


def test_the_map_names_every_module() -> None:
    text = (_REPOSITORY / "docs" / "architecture.md").read_text()
    missing = [
        name
        for path in sorted(_PACKAGE.rglob("*/*.py"))
        # There, each `__init__` is the map.
        if "_compat" not in path.relative_to(_PACKAGE).parts
        and not path.name.endswith(("_test.py", "__init__.py"))
        and (name := str(path.relative_to(_PACKAGE))) not in text
    ]
    assert not missing, f"docs/architecture.md does not name {missing}"
