"""Tests that the library has the messages of docs/troubleshooting.md."""

import ast
import functools
import pathlib
import re

import pytest

from tfps_plugin import docs_blocks_test

_PACKAGE = pathlib.Path(__file__).parent
_PAGE = _PACKAGE.parent / "docs" / "troubleshooting.md"
# What the page writes for a name or a number.
_GAP = "..."

_MESSAGES = [
    " ".join(block.code.split())
    for block in docs_blocks_test.blocks(_PAGE.read_text())
    if block.language == "text"
]


@functools.cache
def _texts() -> str:
    """Returns all texts of the package, with a gap for each value in them."""
    found = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        if not path.name.endswith("_test.py"):
            tree = ast.parse(path.read_text())
            found += [_text(node) for node in ast.walk(tree)]
    return "\n".join(" ".join(text.split()) for text in found if text)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else _GAP
        for part in node.values
    )


@pytest.mark.parametrize("message", _MESSAGES)
def test_the_library_has_the_message(message: str) -> None:
    missing = [
        part.strip()
        for part in message.split(_GAP)
        if part.strip() and part.strip() not in _texts()
    ]
    assert not missing, f"no module has {missing}"


def test_messages_are_found() -> None:
    assert len(_MESSAGES) > 30
    assert "No such text in any module" not in _texts()


def test_each_entry_names_its_class() -> None:
    entries = re.split(r"^### ", _PAGE.read_text(), flags=re.MULTILINE)[1:]
    unclear = [
        entry.partition("\n")[0]
        for entry in entries
        if not re.search(r"`[\w.]*Error`|A warning|The same class", entry)
    ]
    assert not unclear
