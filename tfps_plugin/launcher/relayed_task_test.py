import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

_TIMEOUT_SECONDS = 30
_NOISE = (
    "I0000 00:00:1795658268.596476   10966 cudart_stub.cc:31] Could not find "
    "cuda drivers on your machine, GPU will not be used."
)
# Runs the program of the first argument as a relayed task.
_RELAY = """
import os, sys
from tfps_plugin.launcher import relayed_task
from tfps_plugin.launcher.process_plan import ProcessPlan

plan = ProcessPlan("ps 1", ("-c", sys.argv[1]), {})
sys.exit(relayed_task.run(plan, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}))
"""


def _start(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _RELAY, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(69)", 69), ("os.abort()", 128 + signal.SIGABRT)],
)
def test_every_line_is_an_object_and_the_exit_code_is_the_tasks(
    end: str, code: int
) -> None:
    with _start(
        "import os, sys\nprint('a step')\n"
        f"os.write(2, b'{_NOISE}\\nlast words'); {end}"
    ) as relay:
        out, err = relay.communicate(timeout=_TIMEOUT_SECONDS)
    assert relay.returncode == code
    (said,) = _parsed(out)
    assert (said["task"], said["message"]) == ("ps 1", "a step")
    (last,) = _parsed(err)
    assert (last["logger"], last["message"]) == ("stderr", "last words")


def test_sigterm_is_the_tasks() -> None:
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "print('ready', flush=True)\nsignal.pause()"
    )
    with _start(program) as relay:
        assert relay.stdout is not None
        assert "ready" in relay.stdout.readline()
        os.kill(relay.pid, signal.SIGTERM)
        relay.communicate(timeout=_TIMEOUT_SECONDS)
    assert relay.returncode == 143
