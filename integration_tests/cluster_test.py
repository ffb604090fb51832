"""Tests of clusters of real processes: connections, losses, end of the job."""

import concurrent.futures
import contextlib
import functools
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.chief.session import Session
from tfps_plugin.cluster.forking.forked_tasks import ForkedTask
from tfps_plugin.cluster.local_cluster import LocalCluster
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.machine import tuning
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_PATIENCE_SECONDS = 60.0
# Time for a task to end after its chief; the promise is about a second.
_END_SECONDS = 5.0
_ROOT = pathlib.Path(__file__).parent.parent

# A program as users write it; all tasks run it.
_PROGRAM = """
import sys
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.chief.session import Session
from tfps_plugin.cluster.task import init

task = init()
print("goes on as", task.job, flush=True)
Session.connect(tf_config.read_tf_config().cluster, timeout_seconds=120)
print("connected", flush=True)
if sys.stdin.readline().strip() == "crash":
    raise ValueError("of the user")
"""


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come true in time"
        threading.Event().wait(0.02)


@contextlib.contextmanager
def _program(
    cluster: ClusterSpec, job: str, index: int = 0, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    """Runs the program as one of the cluster's tasks."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={
            **os.environ,
            **environ,
            "PYTHONPATH": str(_ROOT),
            "TF_CONFIG": tf_config.to_tf_config(cluster, job, index),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _read_until_connected(chief: subprocess.Popen[str]) -> None:
    assert chief.stdout is not None
    assert chief.stdout.readline() == "goes on as chief\n"
    assert chief.stdout.readline() == "connected\n"


def _exit_codes(cluster: LocalCluster, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    return [
        cluster.process(task.job, task.index).wait(deadline - time.monotonic())
        for task in cluster.cluster_spec.tasks
    ]


def _is_running(process_id: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
    # A process whose dead parent has not waited for it stays as a zombie.
    return state.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Yields a cluster for all tests that leave it as they found it."""
    with LocalCluster(num_workers=2, num_ps=1) as started:
        yield started


@pytest.fixture
def session(cluster: LocalCluster) -> Session:
    """Returns the chief's connection to the cluster."""
    config = tf_config.from_cluster_resolver(cluster.cluster_resolver)
    return Session.connect(config.cluster)


class _Counter:
    """A variable on the ps, and a function that counts it up on a worker."""

    def __init__(self, session: Session) -> None:
        self._session = session
        (ps,) = session.cluster.parameter_servers
        with tf.device(session.device(ps)):
            self.variable = tf.Variable(tf.zeros([2]))

        @tf.function
        def count() -> Any:
            self.variable.assign_add(tf.ones([2]))
            return self.variable.read_value()

        self._count = count

    def on(self, worker: Task) -> float:
        """Counts up on a worker; returns the new count."""
        with tf.device(self._session.device(worker)):
            return float(self._count().numpy()[0])


def test_functions_run_on_workers_with_variables_on_ps(
    session: Session,
) -> None:
    counter = _Counter(session)
    assert counter.variable.device == "/job:ps/replica:0/task:0/device:CPU:0"
    assert [counter.on(worker) for worker in session.cluster.workers] == [1, 2]
    assert session.cluster.chief_address is not None
    assert session.cluster.chief_address.startswith("127.0.0.1:")
    assert session.listed == set(session.cluster.serving_tasks)


def _scheduling_of_threads(
    process: ForkedTask,
) -> list[tuple[frozenset[int], int]]:
    """Returns the cores and scheduling policy of each thread of a task."""
    found = []
    for name in os.listdir(f"/proc/{process.pid}/task"):
        # A thread may end after it was listed.
        with contextlib.suppress(ProcessLookupError):
            thread = int(name)
            found.append(
                (
                    frozenset(os.sched_getaffinity(thread)),
                    os.sched_getscheduler(thread),
                )
            )
    return found


def _has_said(cluster: LocalCluster, job: str, index: int, text: str) -> bool:
    return text in cluster.log(job, index)


_SERVING = (("worker", 0), ("worker", 1), ("ps", 0))


def test_the_machine_is_left_as_it_is(cluster: LocalCluster) -> None:
    usual = (frozenset(os.sched_getaffinity(0)), os.sched_getscheduler(0))
    for job, index in _SERVING:
        process = cluster.process(job, index)
        assert set(_scheduling_of_threads(process)) == {usual}
        environ = pathlib.Path(f"/proc/{process.pid}/environ").read_text()
        assert "glibc.malloc" not in environ


def test_the_machine_is_tuned_for_tasks_if_asked() -> None:
    usual = (frozenset(os.sched_getaffinity(0)), os.sched_getscheduler(0))
    with LocalCluster(
        num_workers=2,
        num_ps=1,
        tune=True,
        # Workers that see a GPU are left alone.
        environ={"CUDA_VISIBLE_DEVICES": ""},
    ) as cluster:
        cores = []
        for job, index in _SERVING:
            # Its main thread is scheduled as usual from then on.
            _wait_until(
                functools.partial(_has_said, cluster, job, index, "serves at"),
                _PATIENCE_SECONDS,
            )
            process = cluster.process(job, index)
            threads = _scheduling_of_threads(process)
            # All threads but the main thread and the one that waits for the
            # end of this process.
            assert threads.count(usual) == 2
            common = max(threads, key=threads.count)
            assert len(threads) - threads.count(common) == 2
            assert common[1] == os.SCHED_BATCH
            cores.append(common[0])
            environ = pathlib.Path(f"/proc/{process.pid}/environ").read_text()
            # glibc separates its settings there as it reads them.
            for value in tuning.task_variables({}, tune=True).values():
                assert all(each in environ for each in value.split(":"))
    first, second, ps = cores
    assert first | second == ps == usual[0]
    arguments = tuning.task_arguments(
        cluster.cluster_spec, cluster.cluster_spec.workers[0], tune=True
    )
    if arguments and len(usual[0]) > 1:
        assert not first & second


def test_what_a_worker_prints_is_shown_with_its_name(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)], autograph=False)
    def say(number: Any) -> None:
        tf.print("the answer is", number * 7)

    say_it = say.get_concrete_function()
    with tf.device(session.device(session.cluster.workers[1])):
        say_it(tf.constant(6))
    seen = ""

    def is_shown() -> bool:
        nonlocal seen
        seen += capsys.readouterr().err
        return seen.endswith("\n")

    _wait_until(is_shown, _PATIENCE_SECONDS)
    assert seen == "worker 1 | the answer is 42\n"


def test_one_cluster_has_one_session(
    cluster: LocalCluster, session: Session
) -> None:
    assert Session.connect(cluster.cluster_spec) is session


def test_a_worker_is_lost_and_comes_back(
    cluster: LocalCluster, session: Session
) -> None:
    counter = _Counter(session)
    lasting, lost = session.cluster.workers
    assert [counter.on(lasting), counter.on(lost)] == [1, 2]
    assert session.is_same_incarnation(lost)
    before = session.incarnation(lost)

    cluster.kill("worker", lost.index)
    assert not session.is_same_incarnation(lost)
    with pytest.raises(errors.TaskUnreachableError, match="refused"):
        session.probe(lost)
    with pytest.raises(errors.TaskUnreachableError):
        session.readmit(lost)
    with pytest.raises(tf.errors.UnavailableError):
        counter.on(lost)
    assert session.delist(lost) == {lost}
    assert session.delist(lost) == frozenset()
    assert session.incarnation(lost) == 0
    assert counter.on(lasting) == 3

    cluster.start("worker", lost.index, wait=True)
    assert not session.is_same_incarnation(lost)
    session.readmit(lost)
    assert session.is_same_incarnation(lost)
    assert session.incarnation(lost) != before
    assert [counter.on(lost), counter.on(lasting)] == [4, 5]


def test_functions_are_traced_while_a_worker_leaves_and_comes_back(
    session: Session,
) -> None:
    worker = session.cluster.workers[0]
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:

        def leave_and_come_back() -> None:
            for _ in range(25):
                session.delist(worker)
                session.readmit(worker)

        changes = pool.submit(leave_and_come_back)
        while not changes.done():
            # Each function is new, and TensorFlow sends it to all tasks. If
            # threads did not take turns, one in a hundred would fail.
            add = tf.function(
                lambda x: x + 1.0,
                input_signature=[tf.TensorSpec([])],
                autograph=False,
            ).get_concrete_function()
        changes.result()
    for each in session.cluster.workers:
        with tf.device(session.device(each)):
            assert add(tf.constant(1.0)).numpy() == 2.0


def test_a_dead_worker_does_not_hold_up_the_loss_of_another(
    cluster: LocalCluster, session: Session
) -> None:
    counter = _Counter(session)
    first, second = session.cluster.workers
    cluster.kill("worker", first.index)
    cluster.kill("worker", second.index)
    assert session.delist(second) == {first, second}
    assert session.incarnation(first) == 0

    cluster.start("worker", first.index)
    cluster.start("worker", second.index)
    cluster.wait_until_ready()
    for worker in (first, second):
        session.readmit(worker)
    assert [counter.on(first), counter.on(second)] == [1, 2]


def test_a_ps_is_never_given_up_unasked(
    cluster: LocalCluster, session: Session
) -> None:
    (ps,) = session.cluster.parameter_servers
    worker = session.cluster.workers[0]
    cluster.kill("ps", 0)
    with pytest.raises(errors.TaskUnreachableError, match=ps.address):
        session.delist(worker)
    assert session.listed == set(session.cluster.serving_tasks)
    assert session.delist(ps) == {ps}

    cluster.start("ps", 0, wait=True)
    session.readmit(ps)
    assert _Counter(session).on(worker) == 1


def test_a_restarted_task_can_be_readmitted_without_being_delisted(
    cluster: LocalCluster, session: Session
) -> None:
    worker = session.cluster.workers[0]
    cluster.kill("worker", worker.index)
    cluster.start("worker", worker.index, wait=True)
    session.readmit(worker)
    assert _Counter(session).on(worker) == 1


def test_tasks_at_each_others_addresses_are_found_out(
    cluster: LocalCluster, session: Session
) -> None:
    worker, _, ps = (task.address for task in cluster.cluster_spec.tasks)
    with pytest.raises(errors.ClusterConfigurationError, match="calls itself"):
        Session.connect(ClusterSpec((ps,), (worker,)))
    # The existing session stays open.
    assert Session.connect(cluster.cluster_spec) is session


def test_bringing_up_has_a_deadline(cluster: LocalCluster) -> None:
    known = cluster.cluster_spec
    with ports.reserved_port() as free:
        address = f"127.0.0.1:{free}"
        missing = ClusterSpec(known.worker_addresses, (address,))
        with pytest.raises(errors.ClusterStartTimeoutError) as caught:
            Session.connect(missing, timeout_seconds=0.5)
    assert "1 of 3 tasks" in str(caught.value)
    assert f"ps 0 at {address}: Connection refused" in str(caught.value)


def test_another_cluster_ends_the_first_job(
    cluster: LocalCluster, session: Session
) -> None:
    """This is the last test of the shared cluster, which ends here."""
    with LocalCluster(num_workers=3, num_ps=1) as second:
        other = Session.connect(second.cluster_spec)
        assert _exit_codes(cluster, _END_SECONDS) == [0, 0, 0]
        assert "the job is over" in cluster.log("ps", 0)
        counter = _Counter(other)
        workers = other.cluster.workers
        assert [counter.on(worker) for worker in workers] == [1, 2, 3]
        # The first session no longer controls anything.
        session.close()
        assert session.delist(workers[0]) == frozenset()
        assert counter.on(workers[0]) == 4
        cluster.kill("worker", 0)

        second.kill("worker", 2)
        started = time.monotonic()
        other.close()
        assert time.monotonic() - started < _END_SECONDS
        assert _exit_codes(second, _END_SECONDS) == [0, 0, -9, 0]


def test_a_chief_that_fails_is_waited_for_and_another_ends_the_job() -> None:
    with LocalCluster(1, 1) as cluster:
        description = cluster.cluster_spec
        with _program(description, "chief") as chief:
            _read_until_connected(chief)
            _, complaints = chief.communicate("crash\n", _PATIENCE_SECONDS)
        assert chief.returncode == 1
        assert "ValueError: of the user" in complaints
        with _program(description, "chief") as chief:
            _read_until_connected(chief)
            assert cluster.process("ps", 0).poll() is None
            chief.communicate("end\n", _PATIENCE_SECONDS)
        assert chief.returncode == 0
        assert _exit_codes(cluster, _END_SECONDS) == [0, 0]
        # Ignore "no chief has connected yet", which a slow machine adds.
        log = cluster.log("worker", 0)
        assert len(re.findall("The chief at .* has connected", log)) == 2


def test_tasks_end_by_themselves_after_a_chief_that_stays_away() -> None:
    with LocalCluster(1, 1, chief_grace_seconds=1.0) as cluster:
        with _program(cluster.cluster_spec, "chief") as chief:
            _read_until_connected(chief)
            chief.kill()
        assert _exit_codes(cluster, _PATIENCE_SECONDS) == [69, 69]
        assert "has not answered for" in cluster.log("worker", 0)


def test_tasks_end_by_themselves_if_there_never_is_a_chief() -> None:
    with LocalCluster(
        1, 1, wait=False, chief_start_timeout_seconds=0.5
    ) as cluster:
        assert _exit_codes(cluster, _PATIENCE_SECONDS) == [69, 69]
        assert "no chief has connected" in cluster.log("ps", 0)


def test_one_program_for_all_tasks() -> None:
    with contextlib.ExitStack() as stack:
        addresses = [
            f"127.0.0.1:{stack.enter_context(ports.reserved_port())}"
            for _ in range(4)
        ]
        cluster = ClusterSpec(
            tuple(addresses[:2]), (addresses[2],), addresses[3]
        )
        environ = {
            "TF_GRPC_REUSE_PORT": "1",
            # Nothing answers there; the cluster must be reached without it.
            "http_proxy": "http://127.0.0.1:1",
        }
        first, second, ps, chief = (
            stack.enter_context(_program(cluster, job, index, **environ))
            for job, index in (
                ("worker", 0),
                ("worker", 1),
                ("ps", 0),
                ("chief", 0),
            )
        )
        _read_until_connected(chief)
        # As if preempted: a job controller would start it again.
        second.terminate()
        assert second.wait(_END_SECONDS) == 128 + signal.SIGTERM
        chief.communicate("end\n", _PATIENCE_SECONDS)
        assert chief.returncode == 0
        for server in (first, ps):
            said, logged = server.communicate(timeout=_END_SECONDS)
            assert server.returncode == 0
            assert said == ""
            for news in ("serves at", "The chief at", "the job is over"):
                assert logged.count(news) == 1


def test_tasks_can_be_started_after_somebody_has_killed_their_fork_server() -> (
    None
):
    with LocalCluster(num_workers=1, num_ps=1) as cluster:
        before = [cluster.process(job, 0) for job in ("worker", "ps")]
        cluster._tasks._process.kill()
        for process in before:
            process.wait(_END_SECONDS)
        for job in ("worker", "ps"):
            cluster.start(job, 0)
        cluster.wait_until_ready(_PATIENCE_SECONDS)


def test_a_cluster_ends_with_the_process_that_started_it() -> None:
    program = (
        "from tfps_plugin.cluster.local_cluster import LocalCluster\n"
        "cluster = LocalCluster(1, 1)\n"
        "tasks = cluster.cluster_spec.tasks\n"
        "print(*(cluster.process(t.job, t.index).pid for t in tasks))\n"
        "print(cluster._folder, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        children = [int(word) for word in parent.stdout.readline().split()]
        folder = pathlib.Path(parent.stdout.readline().strip())
        assert len(children) == 2
        parent.kill()
    _wait_until(
        lambda: not any(_is_running(child) for child in children), _END_SECONDS
    )
    # Nobody was left to remove the folder.
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_a_task_whose_port_is_taken_says_so() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = ClusterSpec(("127.0.0.1:1",), (address,))
        result = subprocess.run(
            [sys.executable, "-m", "tfps_plugin.cluster.serving.task_server"],
            env={
                **os.environ,
                "TF_CONFIG": tf_config.to_tf_config(cluster, "ps", 0),
            },
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
        )
    assert result.returncode == 1
    assert "ps 0 cannot serve at its address" in result.stderr
    assert f"address='{address}'" in result.stderr
    assert "Traceback" not in result.stderr
