"""Tests of generated manifests: their containers train a model together.

Every task is in a network namespace of its own, under the host name that the
manifest gives it. That needs root and the `ip` command; where they are missing,
the tests are skipped.
"""

import contextlib
import json
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
import shared_network
import shared_pods
import train_when_deployed
from click.testing import CliRunner
from shared_network import Network
from shared_pods import Pods

import tfps_plugin as tfps
from tfps_plugin.launcher.cli import main

_CHIEF = ("chief", 0)
_PS = ("ps", 0)
_WORKER = ("worker", 1)
_TASKS = (_CHIEF, _PS, ("worker", 0), _WORKER)
_SECONDS = 240.0
_SCRIPT = pathlib.Path(__file__).parent.parent / "docs/deploy/over_ssh.sh"
# What shells, Kubernetes and Compose would each replace.
_TEXT = "$(HOME) $HOME $$ 'a' \"b\""


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := shared_network.why_not():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield Network(stack, _TASKS)


def _pods(format_name: str, network: Network, folder: pathlib.Path) -> Pods:
    """Returns the containers of a manifest, not yet started."""
    script = str(folder / "train.py")
    shutil.copy(train_when_deployed.__file__, script)
    result = CliRunner().invoke(
        main,
        [
            *("manifest", "--format", format_name, "--name", "ranking"),
            *("--image", "ranking:1", "--checkpoint-claim", "backups"),
            *(script, "--backup-dir", str(folder), "--text", _TEXT),
        ],
    )
    assert result.exit_code == 0, result.output
    containers = shared_pods.containers_of(format_name, result.stdout)
    assert {each.task for each in containers} == set(_TASKS)
    return Pods(containers, network, folder, _SECONDS)


def _assert_ends(pods: Pods, folder: pathlib.Path) -> dict[str, int]:
    """Ends the training; checks the weights; returns what was counted."""
    (folder / "stop").touch()
    counts: dict[str, int] = json.loads(pods.wait_for("ends (.*)")[1])
    pods.wait_for_end()
    np.testing.assert_allclose(
        counts.pop("weights"), train_when_deployed._WEIGHTS, atol=1e-3
    )
    for codes in pods.exit_codes.values():
        assert codes[-1] == 0
    return counts


@pytest.mark.timeout(_SECONDS + 60)
@pytest.mark.parametrize("format_name", ["jobset", "compose"])
def test_a_worker_is_preempted_and_comes_back(
    format_name: str, network: Network, tmp_path: pathlib.Path
) -> None:
    pods = _pods(format_name, network, tmp_path)
    with pods.running():
        assert json.loads(pods.wait_for("text (.*)")[1]) == _TEXT
        pods.wait_for("trains")
        for task in (_PS, _WORKER):
            assert pods.is_alive(task)
        pods.send(_WORKER, signal.SIGTERM)
        pods.wait_for("seen WorkerLeft")
        pods.wait_for("seen WorkerReadmitted")
        counts = _assert_ends(pods, tmp_path)
    # It has left in order, and its new container is at another address.
    assert counts == {"workers_left": 1, "workers_lost": 0, "steps_again": 0}
    assert pods.exit_codes[_WORKER] == [128 + signal.SIGTERM, 0]
    assert pods.exit_codes[_CHIEF] == [0]


@pytest.mark.timeout(_SECONDS + 60)
@pytest.mark.parametrize("format_name", ["jobset", "compose"])
def test_the_chief_and_a_ps_are_killed_and_come_back(
    format_name: str, network: Network, tmp_path: pathlib.Path
) -> None:
    pods = _pods(format_name, network, tmp_path)
    with pods.running():
        assert pods.wait_for(r"begins at (\d+)")[1] == "0"
        pods.wait_for("trains")
        pods.send(_PS, signal.SIGKILL)
        pods.wait_for("seen ParameterServerRecovered")
        pods.wait_for("trains")
        pods.send(_CHIEF, signal.SIGKILL)
        begins = pods.wait_for_restart(_CHIEF, r"begins at (\d+)")
        # Where the newest backup was.
        assert int(begins[1]) > 0
        pods.wait_for("trains")
        _assert_ends(pods, tmp_path)
    assert pods.exit_codes[_PS] == [128 + signal.SIGKILL, 0]
    assert pods.exit_codes[_CHIEF] == [128 + signal.SIGKILL, 0]


def test_a_probe_finds_a_task_that_hangs() -> None:
    with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
        address = cluster.cluster_spec.ps_addresses[0]
        command = ["probe", "--timeout-seconds", "2", address]
        process = cluster.process("ps", 0)
        assert CliRunner().invoke(main, command).exit_code == 0
        # Its port is open still.
        process.send_signal(signal.SIGSTOP)
        result = CliRunner().invoke(main, command)
        process.send_signal(signal.SIGCONT)
        assert result.exit_code == 1
        assert "no answer within 2 s" in result.output
        assert CliRunner().invoke(main, command).exit_code == 0


# In the place of ssh: runs a command in the network that has an address.
_SSH = """\
#!/bin/sh
[ "$1 $2 $3" = "-n -o BatchMode=yes" ] || exit 255
shift 3
host=$1
shift
space=$(sed -n "s/^$host //p" {spaces})
exec {ip} netns exec "$space" sh -c "$*" < /dev/null
"""


@pytest.mark.timeout(_SECONDS + 60)
def test_the_script_for_ssh_runs_a_job(
    network: Network, tmp_path: pathlib.Path
) -> None:
    environ = shared_pods.environ_with_commands(tmp_path)
    spaces = tmp_path / "spaces"
    spaces.write_text(
        "".join(
            f"{network.host(*task)} {network.namespace(*task)}\n"
            for task in _TASKS
        )
    )
    ssh = tmp_path / "bin" / "ssh"
    ip = shared_network.tool("ip")
    ssh.write_text(_SSH.format(spaces=spaces, ip=ip))
    ssh.chmod(0o755)
    # The folder that every machine has; its environment is that of the test.
    folder = tmp_path / "a folder"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    (tmp_path / "stop").touch()
    workers = [network.host("worker", index) for index in range(2)]
    result = subprocess.run(
        [
            *(str(ip), "netns", "exec", network.namespace(*_CHIEF)),
            *("bash", str(_SCRIPT), train_when_deployed.__file__),
            *("--backup-dir", str(tmp_path), "--text", _TEXT),
        ],
        env={
            **environ,
            "CHIEF": network.host(*_CHIEF),
            "PS": network.host(*_PS),
            "WORKERS": " ".join(workers),
            "FOLDER": str(folder),
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert result.returncode == 0, result.stdout + logs
    assert f"text {json.dumps(_TEXT)}" in result.stdout
    assert "ends {" in result.stdout
    for task in ("ps 0", "worker 0", "worker 1"):
        assert f"{task} ends: the job is over" in logs
