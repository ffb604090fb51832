import threading

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import runtime_errors
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.per_worker.worker_resident import Residents
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident


def _context(
    worker: int, lane: int = 0, generation: int = 0
) -> DispatchContext:
    return DispatchContext(worker, 10 * worker + lane, generation, "device")


def _get(resident: WorkerResident[str], context: DispatchContext) -> str:
    with dispatch_context.dispatching(context):
        return resident.get()


def _named(context: DispatchContext) -> str:
    return f"{context.lane_index}.{context.generation}"


def test_lanes_of_a_worker_share_unless_told_otherwise() -> None:
    shared = WorkerResident(_named, per_lane=False)
    assert _get(shared, _context(1, 0)) == "10.0"
    assert _get(shared, _context(1, 1)) == "10.0"
    own = WorkerResident(_named, per_lane=True)
    assert _get(own, _context(1, 0)) == "10.0"
    assert _get(own, _context(1, 1)) == "11.0"
    assert own.existing() == ["10.0", "11.0"]


def test_it_is_built_again_for_a_new_generation() -> None:
    resident = WorkerResident(_named, per_lane=False)
    _get(resident, _context(0))
    assert _get(resident, _context(0, generation=1)) == "0.1"
    assert resident.existing() == ["0.1"]


def test_a_late_lane_does_not_replace_what_is_newer() -> None:
    resident = WorkerResident(_named, per_lane=False)
    _get(resident, _context(0, generation=1))
    with pytest.raises(tf.errors.AbortedError, match="generation=0") as caught:
        _get(resident, _context(0, lane=1, generation=0))
    assert resident.existing() == ["0.1"]
    # The lane takes this for a failure of a worker, not of the user's step.
    assert runtime_errors.is_about_the_cluster(
        type(caught.value).__name__, str(caught.value)
    )


def test_a_failed_build_is_tried_again() -> None:
    attempts = []

    def build(context: DispatchContext) -> str:
        attempts.append(context)
        if len(attempts) == 1:
            raise RuntimeError("no")
        return "built"

    resident = WorkerResident(build, per_lane=False)
    with pytest.raises(RuntimeError):
        _get(resident, _context(0))
    assert resident.existing() == []
    assert _get(resident, _context(0)) == "built"


def test_lost_workers_are_forgotten_by_all() -> None:
    first = WorkerResident(_named, per_lane=False)
    second = WorkerResident(_named, per_lane=True)
    for resident in (first, second):
        for worker in (0, 1):
            _get(resident, _context(worker))
    connection.present().part(Residents).forget_worker(0)
    assert first.existing() == second.existing() == ["10.0"]


def test_coordinators_of_one_connection_share_it() -> None:
    resident = WorkerResident(_named, per_lane=False)
    first, second = (
        _context(0, generation=n)._replace(worker_calls=WorkerCalls())
        for n in (1, 0)
    )
    # Each coordinator counts the worker's lives that it has seen.
    assert [_get(resident, each) for each in (first, second, first)] == (
        ["0.1"] * 3
    )
    with pytest.raises(tf.errors.AbortedError):
        _get(resident, first._replace(generation=0))


def test_a_new_connection_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_present", connection._Present())
    resident = WorkerResident(_named, per_lane=False)
    before = connection.begin()
    residents = before.part(Residents)
    _get(resident, _context(0, generation=1))
    before.end("superseded by a newer strategy")
    assert resident.existing() == []
    present = connection.begin()
    assert _get(resident, _context(0)) == "0.0"
    # Late news from the earlier cluster is about other workers.
    residents.forget_worker(0)
    assert resident.existing() == ["0.0"]
    present.part(Residents).forget_worker(0)
    assert resident.existing() == []


def test_forget_drops_all() -> None:
    resident = WorkerResident(_named, per_lane=False)
    _get(resident, _context(0))
    resident.forget()
    assert resident.existing() == []


def test_it_is_built_once_however_many_lanes_ask() -> None:
    built = []
    release = threading.Event()
    asked = threading.Barrier(4)

    def build(context: DispatchContext) -> str:
        built.append(context)
        assert release.wait(10)
        return "built"

    resident = WorkerResident(build, per_lane=False)

    def ask(lane: int) -> None:
        asked.wait(10)
        _get(resident, _context(0, lane))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    asked.wait(10)
    release.set()
    for thread in threads:
        thread.join(10)
    assert len(built) == 1


def test_the_chief_has_none() -> None:
    with pytest.raises(errors.InternalError):
        WorkerResident(_named, per_lane=False).get()
