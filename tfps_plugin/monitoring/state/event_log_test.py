from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.state.event_log import EventLog

_LOST = events.WorkerLost(1, "host:1", "Connection refused")


def test_events_are_kept_in_order_with_their_times() -> None:
    log = EventLog()
    board = events.Events()
    board.subscribe(log.add)
    board.publish(_LOST)
    board.publish(events.WorkerReadmitted(1, "host:1", 1, 2.5))
    lost, back = log.latest
    assert (lost.kind, lost.level) == ("WorkerLost", "WARNING")
    assert lost.text == str(_LOST)
    assert back.kind == "WorkerReadmitted"
    assert lost.time <= back.time


def test_closures_that_run_again_push_nothing_out() -> None:
    log = EventLog()
    log.add(_LOST)
    for attempt in range(1000):
        log.add(events.ClosureRetried(0, attempt, "Socket closed"))
    assert [each.kind for each in log.latest] == ["WorkerLost"]


def test_the_log_has_the_latest_events_only() -> None:
    log = EventLog()
    for index in range(1000):
        log.add(events.NoWorkerLeft(float(index), 600.0))
    assert len(log.latest) == 200
    assert "999 s" in log.latest[-1].text


def test_the_newest_checkpoint_is_known() -> None:
    log = EventLog()
    assert log.last_checkpoint is None
    log.add(events.CheckpointWritten("/folder/ckpt-1", 0.5))
    log.add(events.CheckpointWritten("/folder/ckpt-2", 0.75))
    log.add(events.CheckpointFailed("/folder/ckpt-3", "disk full"))
    checkpoint = log.last_checkpoint
    assert checkpoint is not None
    assert (checkpoint.path, checkpoint.seconds) == ("/folder/ckpt-2", 0.75)


def test_recoveries_are_counted_by_parameter_server() -> None:
    log = EventLog()
    for _ in range(2):
        log.add(events.ParameterServerRecovered(1, "host:2", "ckpt-1", 3, 1.0))
    assert (log.num_recoveries(0), log.num_recoveries(1)) == (0, 2)
