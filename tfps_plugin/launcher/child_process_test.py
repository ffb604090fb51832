import os

import pytest

from tfps_plugin.launcher.child_process import ChildProcess
from tfps_plugin.launcher.process_plan import ProcessPlan


def test_no_signal_goes_to_the_id_of_a_buried_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = ChildProcess(ProcessPlan("chief", ("-c", "pass"), {}), os.environ)
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.bury() == 0
        sent: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "killpg", lambda *each: sent.append(each))
    finally:
        child.discard()
    assert not sent
    assert not any(output.is_open for output in child.outputs)
