"""Tests that the commands and files of docs/deploy/ work."""

import pathlib
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import tfps_plugin
from tfps_plugin.launcher.cli import main

_REPOSITORY = pathlib.Path(tfps_plugin.__file__).parent.parent
_FOLDER = _REPOSITORY / "docs" / "deploy"
_BASH = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Yields the pages and arguments of all uses of `tfps manifest`."""
    for page in sorted(_FOLDER.glob("*.md")):
        for block in _BASH.findall(page.read_text()):
            for line in block.replace("\\\n", "").splitlines():
                words = shlex.split(line.partition(" > ")[0])
                if words[:2] == ["tfps", "manifest"]:
                    yield page.stem, words[1:]


_COMMANDS = list(_commands())


@pytest.mark.parametrize(
    "arguments",
    [arguments for _, arguments in _COMMANDS],
    ids=[name for name, _ in _COMMANDS],
)
def test_commands_of_the_pages_work(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""


def test_the_pages_have_commands() -> None:
    assert {"docker", "kubernetes", "slurm"} <= {name for name, _ in _COMMANDS}


def test_the_compose_file_is_what_its_command_prints() -> None:
    (arguments,) = (each for name, each in _COMMANDS if name == "docker")
    text = (_FOLDER / "compose.yaml").read_text()
    assert CliRunner().invoke(main, arguments).stdout == text


def test_the_image_has_what_it_needs() -> None:
    text = (_FOLDER / "Dockerfile").read_text()
    sources = [
        source
        for line in text.splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    ]
    assert "tfps_plugin" in sources
    for source in sources:
        assert (_REPOSITORY / source.replace("${PROGRAM}", "examples")).exists()
    # The user of manifests.
    assert "\nUSER 1000:1000\n" in text


def test_bash_accepts_the_script_for_ssh() -> None:
    script = _FOLDER / "over_ssh.sh"
    subprocess.run(["bash", "-n", script], check=True, timeout=30)
