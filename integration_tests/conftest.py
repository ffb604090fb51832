"""What every integration test gets."""

import pathlib

import pytest

from tfps_plugin.conftest import nothing_left_behind as nothing_left_behind
from tfps_plugin.conftest import scratch_folder as scratch_folder

_HERE = pathlib.Path(__file__).parent

# Real processes: each imports TensorFlow, for some seconds, on few cores.
_TIMEOUT_SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder, and gives them more time."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS))
