"""The public face is what it says it is, and costs nothing to import."""

import ast
import dataclasses
import inspect
import pathlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

import tfps_plugin

_SOURCE = pathlib.Path(tfps_plugin.__file__)
_MODULE_NAMES = (
    "callbacks",
    "errors",
    "events",
    "layers",
    "partitioners",
    "serving",
)


def _names_for_type_checkers() -> dict[str, str]:
    """Public name -> module, from the TYPE_CHECKING block."""
    (block,) = (
        node
        for node in ast.parse(_SOURCE.read_text()).body
        if isinstance(node, ast.If)
    )
    homes = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            homes[alias.asname or alias.name] = statement.module or ""
    return homes


def test_all_is_sorted_and_without_repetition() -> None:
    assert tfps_plugin.__all__ == sorted(set(tfps_plugin.__all__))


def test_every_public_name_has_a_home() -> None:
    assert sorted(tfps_plugin._HOMES) == tfps_plugin.__all__


def test_type_checkers_see_the_same_names() -> None:
    for name, module in _names_for_type_checkers().items():
        home = tfps_plugin._HOMES[name]
        assert home in (module, f"{module}.{name}")
    assert sorted(_names_for_type_checkers()) == tfps_plugin.__all__


@pytest.mark.compat
@pytest.mark.parametrize("name", tfps_plugin.__all__)
def test_every_public_name_can_be_loaded(name: str) -> None:
    value = getattr(tfps_plugin, name)
    if name in _MODULE_NAMES:
        assert value.__name__ == tfps_plugin._HOMES[name]
    else:
        assert value.__name__ == name
        assert value.__doc__


def test_dir_lists_the_public_names() -> None:
    assert set(tfps_plugin.__all__) <= set(dir(tfps_plugin))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Strategy'"):
        _ = tfps_plugin.Strategy


def test_the_version_is_the_installed_one() -> None:
    assert tfps_plugin.__version__.count(".") == 2


@pytest.mark.parametrize(
    "program",
    [
        "import tfps_plugin; tfps_plugin.errors",
        "from tfps_plugin.launcher.cli import main; "
        "main(['--help'], standalone_mode=False)",
        "from tfps_plugin.launcher.cli import main; "
        "main(['run', '--help'], standalone_mode=False)",
    ],
)
def test_needs_no_tensorflow(program: str) -> None:
    check = (
        "import sys; print(sorted({'tensorflow', 'keras', 'numpy', 'grpc'}"
        " & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"{program}\n{check}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_serving_needs_no_tensorflow() -> None:
    check = (
        "import sys; from tfps_plugin import serving; serving.Tables; "
        "print(sorted({'tensorflow', 'keras', 'grpc'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", tfps_plugin.__all__)
def test_docstrings_have_the_sections_that_apply(name: str) -> None:
    missing = [
        f"{qualified} lacks {section}"
        for qualified, subject in _documented(name)
        for section in _missing_sections(subject)
    ]
    assert not missing, "\n".join(missing)


def _documented(name: str) -> Iterator[tuple[str, Any]]:
    """Yields the public classes and functions that a public name stands for."""
    value = getattr(tfps_plugin, name)
    if name not in _MODULE_NAMES:
        members = {name: value}
    else:
        public = sorted({*dir(value)} - {"annotations"})
        members = {f"{name}.{each}": getattr(value, each) for each in public}
    for qualified, member in members.items():
        is_public = not qualified.rpartition(".")[2].startswith("_")
        if is_public and _is_ours(member):
            yield qualified, member
            if inspect.isclass(member):
                yield from _methods(qualified, member)


def _methods(qualified: str, owner: type) -> Iterator[tuple[str, Any]]:
    """Yields public methods; those of a foreign interface follow its docs."""
    foreign = [base for base in owner.__mro__[1:] if not _is_ours(base)]
    members = {
        name: member
        for base in reversed(owner.__mro__)
        if _is_ours(base)
        for name, member in vars(base).items()
    }
    for name, member in members.items():
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        if (
            inspect.isfunction(member)
            and not name.startswith("_")
            and not any(hasattr(base, name) for base in foreign)
        ):
            yield f"{qualified}.{name}", member


def _is_ours(value: Any) -> bool:
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    return is_code and value.__module__.startswith("tfps_plugin")


def _missing_sections(subject: Any) -> list[str]:
    """Returns the sections that a docstring needs and does not have."""
    docstring = inspect.getdoc(subject) or ""
    function = subject
    if inspect.isclass(subject):
        function = vars(subject).get("__init__")
        if not inspect.isfunction(function):
            return []
        docstring += "\n" + (inspect.getdoc(function) or "")
        if dataclasses.is_dataclass(subject):
            # Its attributes are its arguments.
            docstring = docstring.replace("\nAttributes:", "\nArgs:")
    needed = []
    if _parameters(function):
        needed.append("Args")
    if not inspect.isclass(subject) and _has_result(function):
        needed.append("Returns")
    if any(map(_raises, (function, getattr(subject, "__post_init__", None)))):
        needed.append("Raises")
    return [
        section
        for section in needed
        if not re.search(rf"^{section}:$", docstring, re.MULTILINE)
        and not (section == "Returns" and re.match("Returns|Yields", docstring))
    ]


def _parameters(function: Callable[..., Any]) -> list[str]:
    return [
        name
        for name in inspect.signature(function).parameters
        if name not in ("self", "cls") and not name.startswith("_")
    ]


def _has_result(function: Callable[..., Any]) -> bool:
    return inspect.signature(function).return_annotation not in (
        inspect.Signature.empty,
        None,
        "None",
    )


def _raises(function: Callable[..., Any] | None) -> bool:
    """Returns whether the body of a function raises an exception."""
    try:
        source = textwrap.dedent(inspect.getsource(function))  # type: ignore[arg-type]
    except (OSError, TypeError):
        return False  # Absent, or generated by a decorator.
    (statement,) = ast.parse(source).body
    if not isinstance(statement, ast.FunctionDef):
        return False  # Made by a call.
    waiting: list[ast.AST] = list(statement.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return False
