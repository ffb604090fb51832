"""Tests that the table of patches is complete, and equal to the docs."""

import ast
import pathlib
import subprocess
import sys

import pytest

import tfps_plugin
from tfps_plugin._compat import patch_table
from tfps_plugin._compat.patches import Patch

_PACKAGE = pathlib.Path(tfps_plugin.__file__).parent
_PAGE = _PACKAGE.parent / "docs" / "patches.md"

# Prints the replaced attributes of Keras and TensorFlow after importing this
# package, after applying the table, and after undoing that.
_PROGRAM = """
import importlib, pathlib, sys, types
import {foreign_modules}

def is_foreign(module):
    return isinstance(module, str) and (
        module.partition(".")[0] in ("keras", "tensorflow"))

def snapshot():
    values = {{}}
    for module_name, module in list(sys.modules.items()):
        if not is_foreign(module_name) or not isinstance(
            module, types.ModuleType
        ):
            continue
        for name, value in list(vars(module).items()):
            values[module_name, "", name] = value
            if isinstance(value, type) and is_foreign(value.__module__):
                for attribute, inner in list(vars(value).items()):
                    key = value.__module__, value.__qualname__, attribute
                    values[key] = inner
    return values

def runs(value):
    return callable(value) or isinstance(
        value, (property, staticmethod, classmethod))

def replaced(before, after):
    owners = {{key[:2] for key in before}}
    for key, value in after.items():
        if key in before:
            if value is not before[key] and (
                runs(value) or runs(before[key])):
                yield key
        elif key[1] and key[:2] in owners and runs(value):
            yield key

def show(before, after):
    for module, owner, name in sorted(set(replaced(before, after))):
        print(f"{{module}}:{{owner}}.{{name}}".replace(":.", ":"))

before = snapshot()
for name in {own_modules}:
    importlib.import_module(name)
imported = snapshot()
show(before, imported)
print("--- with the first strategy")
from tfps_plugin._compat import patches
from tfps_plugin.training.patches import hooks
hooks.install()
applied = snapshot()
show(imported, applied)
print("--- afterwards")
patches.undo()
show(imported, snapshot())
"""


def _own_files() -> list[pathlib.Path]:
    return [
        path
        for path in sorted(_PACKAGE.rglob("*.py"))
        if not path.name.endswith("_test.py")
        and path.name not in ("conftest.py", "__main__.py", "testing.py")
    ]


def _foreign_modules() -> list[str]:
    """Returns modules of Keras and TensorFlow that this package imports."""
    names = {patch.target.partition(":")[0] for patch in patch_table.ROWS}
    for path in _own_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
    return sorted(
        name
        for name in names
        if name.partition(".")[0] in ("keras", "tensorflow")
    )


def _resolved(target: str) -> str:
    """Returns a target by the module that defines its class."""
    if not target.startswith("tfps_plugin"):
        return target
    from tfps_plugin._compat.keras_saving import ExportArchive

    name = target.rpartition(".")[2]
    return f"{ExportArchive.__module__}:{ExportArchive.__qualname__}.{name}"


def test_nothing_else_is_replaced() -> None:
    own = [
        ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
        for path in _own_files()
    ]
    program = _PROGRAM.format(
        foreign_modules=", ".join(_foreign_modules()), own_modules=own
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=_PACKAGE.parent,
    )
    assert result.returncode == 0, result.stderr
    by_import, _, rest = result.stdout.partition("--- with the first strategy")
    with_strategy, _, afterwards = rest.partition("--- afterwards")
    assert by_import.split() == []
    assert afterwards.split() == []
    # TensorFlow's dispatcher does not keep its targets in attributes.
    assert sorted(with_strategy.split()) == sorted(
        _resolved(patch.target)
        for patch in patch_table.ROWS
        if patch.api is None
    )


def test_a_target_is_listed_once() -> None:
    targets = [patch.target for patch in patch_table.ROWS]
    assert len(targets) == len(set(targets))


@pytest.mark.parametrize(
    "patch", patch_table.ROWS, ids=lambda patch: str(patch.target)
)
def test_the_reason_is_a_sentence(patch: Patch) -> None:
    assert patch.reason.endswith(".")
    assert len(patch.reason) < 120


_PREFACE = """\
# What is replaced in Keras and TensorFlow

Neither Keras nor TensorFlow has a hook at the places below. The first
strategy replaces them; importing `tfps_plugin` replaces nothing. Each
replacement does what the original does for models, variables and functions
that do not belong to a parameter-server strategy.

Before anything is replaced, the parameters of every original are compared
with those that its replacement relies on. If the installed release differs,
the strategy fails with an error that names the release and the attribute.

The table is `_compat/patch_table.py`. `patches.undo` in `_compat/patches.py`
takes all of it back, for tests and for programs that go on without a cluster.
`_compat/patch_table_test.py` finds what is replaced and not listed, and
compares this page with the table. The page is what
`python -m tfps_plugin._compat.patch_table_test` prints.
"""


def page() -> str:
    """Returns the text of docs/patches.md."""
    lines = [_PREFACE]
    for title, patches in patch_table.GROUPS.items():
        lines += [
            f"## {title}",
            "",
            "| attribute | replacement | reason | read on |",
            "|---|---|---|---|",
        ]
        for patch in patches:
            target = patch.target.replace(":", ".").replace(
                "tfps_plugin._compat.keras_saving", "keras.export"
            )
            lines.append(
                f"| `{target}` | `{_file(patch.wrapper)}` | {patch.reason} "
                f"| {patch.read_on} |"
            )
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _file(wrapper: str) -> str:
    return wrapper.replace(":", ".").rpartition(".")[0].replace(".", "/") + (
        ".py"
    )


def test_the_page_shows_the_table() -> None:
    assert _PAGE.read_text() == page(), (
        "write it anew: python -m tfps_plugin._compat.patch_table_test "
        "> docs/patches.md"
    )


if __name__ == "__main__":
    print(page(), end="")
