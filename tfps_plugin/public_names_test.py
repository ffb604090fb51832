"""The public face is what it says it is, and costs nothing to import."""

import ast
import pathlib
import subprocess
import sys

import pytest

import tfps_plugin

_SOURCE = pathlib.Path(tfps_plugin.__file__)


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
    if name in ("callbacks", "errors", "events", "layers", "partitioners"):
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
