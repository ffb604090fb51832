"""Makes the programs of examples/ a page of the site.

Pages link to them as `../examples/name.py`, which works where the repository is
shown; on the site these links lead to the page.
"""

import ast
import pathlib
import re
from typing import Any

from mkdocs.structure.files import File
from mkdocs.structure.files import Files

_PAGE = "example_programs.md"
_FOLDER = pathlib.Path(__file__).parents[2] / "examples"
_LINK = re.compile(r"\]\((?:\.\./)+examples/(\w+)\.(?:py|ipynb)\)")
_INTRODUCTION = """# Programs of the examples

The programs of the folder `examples/`; each is run by a test.
"""


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the page of examples.

    Args:
        files: The files of the site.
        config: The configuration of the site.

    Returns:
        The files, and the page.
    """
    files.append(File.generated(config, _PAGE, content=_page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Returns the text of a page with links to examples that work there.

    Args:
        markdown: The text.
        page: The page.
    """
    up = "../" * page.file.src_uri.count("/")
    return _LINK.sub(rf"]({up}{_PAGE}#\1)", markdown)


def _page() -> str:
    parts = [_INTRODUCTION]
    for path in sorted(_FOLDER.glob("*.py")):
        if path.name.endswith("_test.py"):
            continue
        source = path.read_text().rstrip()
        summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
        parts.append(
            f"## {path.name} {{#{path.stem}}}\n\n{summary[0]}\n\n"
            f'??? example "The program"\n\n'
            + "\n".join(
                f"    {line}".rstrip()
                for line in f"```python\n{source}\n```".splitlines()
            )
        )
    return "\n\n".join(parts) + "\n"
