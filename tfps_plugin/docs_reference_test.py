"""Tests that docs/reference/ has every public name.

`public_names_test` holds that their docstrings have the sections that apply.
"""

import inspect
import pathlib
import re

import pytest

import tfps_plugin

_FOLDER = pathlib.Path(__file__).parent.parent / "docs" / "reference"
_ENTRY = re.compile(r"^::: (\S+)\n(?:    options:\n)?((?:      .*\n)*)", re.M)
_MODULES = (
    "callbacks",
    "errors",
    "events",
    "layers",
    "partitioners",
    "serving",
)
# Methods that a class has for other modules of the package.
_INTERNAL = {
    "ClusterCoordinator": {
        *("cancel_queued", "end_round", "has_error", "has_work"),
        *("is_recovering", "limit_in_flight", "move_variables", "num_lanes"),
        *("lost_ps", "observe_steps", "presences", "relative_speed", "round"),
        *("safe_points", "set_back", "use_present", "wait_until_quiet"),
    },
    "ParameterServerStrategy": {
        *(
            "coordinator",
            "copy_devices",
            "fused",
            "go_on_with",
            "has_work",
            "inventory",
        ),
        *("layout_version", "move_to_ps", "on_ps", "ps_by_index"),
        *("ps_devices", "replica_devices", "session", "worker_capacity"),
        *("tell_of_unused_storage", "worker_devices"),
    },
    "RemoteValue": {"bring_home", "is_on", "on_ended", "set_outcome"},
    "CheckpointManager": set(),
    "LocalCluster": set(),
    "SidecarEvaluator": set(),
}


def _entries() -> dict[str, str]:
    """Returns the names in the reference, and the options of each."""
    return {
        name: options
        for page in sorted(_FOLDER.glob("*.md"))
        for name, options in _ENTRY.findall(page.read_text())
    }


def _public_names() -> list[str]:
    names = [name for name in tfps_plugin.__all__ if name not in _MODULES]
    for module_name in _MODULES:
        module = getattr(tfps_plugin, module_name)
        names += [
            f"{module_name}.{name}"
            for name in dir(module)
            if not name.startswith("_") and _is_ours(getattr(module, name))
        ]
    return names


def _is_ours(value: object) -> bool:
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    module = getattr(value, "__module__", "") or ""
    return is_code and module.startswith("tfps_plugin")


@pytest.mark.parametrize("name", _public_names())
def test_the_reference_has_the_name(name: str) -> None:
    assert f"tfps_plugin.{name}" in _entries()


def test_the_overview_has_every_name() -> None:
    text = (_FOLDER / "index.md").read_text()
    missing = [
        name for name in tfps_plugin.__all__ if f"tfps.{name}" not in text
    ]
    assert not missing


@pytest.mark.parametrize("name", _INTERNAL)
def test_the_reference_has_the_methods(name: str) -> None:
    owner = getattr(tfps_plugin, name)
    public = {
        method
        for each in owner.__mro__
        if each.__module__.startswith("tfps_plugin")
        # The names of the last release are in the docs of the options.
        and each.__name__ != "DeprecatedAttributes"
        for method, value in vars(each).items()
        if not method.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
    }
    options = _entries()[f"tfps_plugin.{name}"]
    missing = {
        method
        for method in public - _INTERNAL[name]
        if not re.search(rf"\b{method}\b", options)
    }
    assert not missing
