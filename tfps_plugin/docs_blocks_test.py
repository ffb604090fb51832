"""The blocks of code in README and docs/, and tests that each is accounted for.

Each fenced block says its language. Python is run, page by page, by
`integration_tests/pages_test.py`; a shell's, and some of Python, as the comment
above it says:

    <!-- run by test_of_that_name -->
    <!-- not run: reason -->

What the blocks of a page need and do not show stands in a comment, too, which
is run in its place:

    <!-- setup
    strategy = tfps.ParameterServerStrategy()
    -->
"""

import ast
import dataclasses
import json
import pathlib
import re

import pytest

_PACKAGE = pathlib.Path(__file__).parent
_REPOSITORY = _PACKAGE.parent

PAGES = [
    *sorted(_REPOSITORY.glob("*.md")),
    *(
        page
        for page in sorted((_REPOSITORY / "docs").rglob("*.md"))
        if not any(part.startswith(".") for part in page.parts[-3:])
    ),
]

_PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|^(?P<mark><!-- (?:run by|not run)[^>]*-->)\n"
    r"|^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_RUN_BY = re.compile(r"<!-- run by (test_\w+) -->")
_NOT_RUN = re.compile(r"<!-- not run: \S[^>]*-->")
# Languages of programs; blocks of the others are data, or what programs print.
_PROGRAMS = {"bash", "console", "python", "sh"}
_OTHERS = {
    "dockerfile",
    "diff",
    "ini",
    "json",
    "promql",
    "text",
    "toml",
    "yaml",
}


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a page.

    Args:
        language: Its language; "python" for a setup.
        code: What it says.
        line: The number of lines of the page above what it says.
        mark: The comment above it about who runs it; "": none.
    """

    language: str
    code: str
    line: int
    mark: str = ""


def blocks(text: str) -> list[Block]:
    """Returns the blocks of a page, setups included, from top to bottom.

    Args:
        text: The page.
    """
    found = []
    mark, mark_end = "", -1
    for part in _PART.finditer(text):
        if part["mark"]:
            mark, mark_end = part["mark"], part.end()
            continue
        kind = "code" if part["setup"] is None else "setup"
        code = part[kind]
        if part["indent"]:
            code = re.sub(f"^{part['indent']}", "", code, flags=re.MULTILINE)
        found.append(
            Block(
                part["language"] or "" if kind == "code" else "python",
                code,
                text.count("\n", 0, part.start(kind)),
                mark if mark_end == part.start() else "",
            )
        )
    return found


def page_name(page: pathlib.Path) -> str:
    """Returns the name of a page within the repository.

    Args:
        page: Its path.
    """
    return page.relative_to(_REPOSITORY).as_posix()


def _tests() -> set[str]:
    return {
        name
        for folder in ("tfps_plugin", "integration_tests", "examples")
        for path in (_REPOSITORY / folder).rglob("*_test.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.M)
    }


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_says_its_language(page: pathlib.Path) -> None:
    unknown = [
        f"line {block.line}: {block.language or 'none'}"
        for block in blocks(page.read_text())
        if block.language not in _PROGRAMS | _OTHERS
    ]
    assert not unknown, (
        f"{page_name(page)} has blocks of unknown languages; expected one of "
        f"{sorted(_PROGRAMS | _OTHERS)}: {unknown}"
    )


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_program_is_run_or_says_why_not(page: pathlib.Path) -> None:
    tests = _tests()
    wrong = []
    for block in blocks(page.read_text()):
        run_by = _RUN_BY.fullmatch(block.mark)
        if run_by is not None and run_by[1] not in tests:
            wrong.append(f"line {block.line}: there is no {run_by[1]}")
        is_marked = run_by or _NOT_RUN.fullmatch(block.mark)
        if block.language in _PROGRAMS - {"python"} and not is_marked:
            wrong.append(f"line {block.line}: expected a comment above it")
        if block.mark and not is_marked:
            wrong.append(f"line {block.line}: unknown comment {block.mark}")
    assert not wrong, f"{page_name(page)}: {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_block_is_overlooked(page: pathlib.Path) -> None:
    text = page.read_text()
    fences = len(re.findall(r"^\s*(?:```|~~~)", text, re.M))
    setups = text.count("<!-- setup")
    assert fences % 2 == 0
    assert len(blocks(text)) == fences // 2 + setups


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_blocks_can_be_parsed(page: pathlib.Path) -> None:
    for block in blocks(page.read_text()):
        if block.language == "python":
            ast.parse(block.code)
        if block.language == "json":
            json.loads(block.code)


def test_blocks_are_found() -> None:
    text = """# A page
<!-- setup
x = 1
-->
```python
y = x
```
<!-- not run: it takes a day -->
```bash
sleep 86400
```

  - a list

    ```text
    output
    ```
"""
    assert blocks(text) == [
        Block("python", "x = 1\n", 2),
        Block("python", "y = x\n", 5),
        Block("bash", "sleep 86400\n", 9, "<!-- not run: it takes a day -->"),
        Block("text", "output\n", 15),
    ]
