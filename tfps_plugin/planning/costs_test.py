import pathlib

import pytest

from tfps_plugin import errors
from tfps_plugin.planning.costs import Costs


def test_a_file_replaces_some_costs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"ps_message": 0.5}')
    costs = Costs.read(str(path))
    assert costs.ps_message == 0.5
    assert costs.chief_call == Costs().chief_call


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"other": 1}', '{"ps_byte": -1}', '{"ps_byte": "1"}'],
)
def test_another_file_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(errors.PlanError, match="Received"):
        Costs.read(str(path))
