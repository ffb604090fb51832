"""Workers read splits one at a time, and lose them together."""

import contextlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.chief import connection
from tfps_plugin.inputs.split_reader import Share
from tfps_plugin.inputs.split_reader import SplitReader
from tfps_plugin.inputs.splits import SplitLedger
from tfps_plugin.inputs.splits import Visitation
from tfps_plugin.variables.per_worker.worker_resident import Residents

_SECONDS = 20


def _reader(
    num_splits: int,
    visitation: Visitation = Visitation.AT_LEAST_ONCE,
    build: Callable[[DispatchContext, int], Any] = lambda c, s: (f"it {s}", 0),
    **options: Any,
) -> SplitReader:
    return SplitReader(
        lambda context, split, skip: build(context, split),
        SplitLedger(num_splits, visitation),
        **options,
    )


@contextlib.contextmanager
def _on(
    reader: SplitReader, worker: int, generation: int = 1
) -> Iterator[Share | None]:
    context = DispatchContext(worker, worker, generation, "/device:CPU:0")
    with dispatch_context.dispatching(context), reader.reading() as share:
        yield share


def _read(reader: SplitReader, worker: int, generation: int = 1) -> Any:
    """Reads a split to its end; its number."""
    with _on(reader, worker, generation) as share:
        if share is None:
            return None
        share.exhausted()
        return share.split


def _in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Starts a function; what is returned waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()

    def result() -> Any:
        thread.join(_SECONDS)
        assert not thread.is_alive()
        return results[0]

    return result


def _wait_for_waiting(reader: SplitReader) -> None:
    reached = threading.Event()

    def look() -> None:
        while not reader.num_waiting:
            if reached.wait(0.001):
                return
        reached.set()

    thread = threading.Thread(target=look)
    thread.start()
    assert reached.wait(_SECONDS)
    thread.join()


def test_lanes_of_a_worker_share_an_iterator() -> None:
    reader = _reader(2)
    with _on(reader, 0) as one, _on(reader, 0) as other, _on(reader, 1) as far:
        assert one is other
        assert one is not None
        assert far is not None
        assert (one.iterator, far.iterator) == ("it 0", "it 1")


def test_the_next_split_comes_after_the_last() -> None:
    finished: list[int] = []
    reader = _reader(3, on_finished=lambda share: finished.append(share.split))
    assert [_read(reader, 0) for _ in range(4)] == [0, 1, 2, None]
    assert finished == [0, 1, 2]
    assert reader.is_over


def test_a_split_is_finished_when_its_last_reader_leaves() -> None:
    finished: list[int] = []
    reader = _reader(2, on_finished=lambda share: finished.append(share.split))
    with _on(reader, 0) as slow:
        assert slow is not None
        assert _read(reader, 0) == 0
        assert _read(reader, 0) == 1
        assert finished == [1]
        assert not reader.is_over
    assert finished == [1, 0]
    assert reader.is_over


def test_who_finds_nothing_waits_for_what_others_read() -> None:
    reader = _reader(1)
    with contextlib.suppress(ZeroDivisionError), _on(reader, 0):
        waiting = _in_thread(lambda: _read(reader, 1))
        _wait_for_waiting(reader)
        raise ZeroDivisionError  # so the split comes back
    assert waiting() == 0
    assert reader.is_over


def test_who_does_not_wait_finds_nothing_while_others_read() -> None:
    is_told: list[bool] = []
    reader = _reader(1, on_waiting=lambda: is_told.append(True))

    def read() -> Share | None:
        context = DispatchContext(1, 1, 1, "/device:CPU:0")
        with (
            dispatch_context.dispatching(context),
            reader.reading(waits=False) as share,
        ):
            return share

    with contextlib.suppress(ZeroDivisionError), _on(reader, 0):
        assert read() is None
        assert not reader.is_over
        raise ZeroDivisionError  # so the split comes back
    assert not is_told
    again = read()
    assert again is not None
    assert again.split == 0


def test_who_waits_goes_on_when_all_is_read() -> None:
    reader = _reader(1)
    with _on(reader, 0) as share:
        assert share is not None
        waiting = _in_thread(lambda: _read(reader, 1))
        _wait_for_waiting(reader)
        share.exhausted()
    assert waiting() is None


def test_who_waits_goes_on_when_the_reader_is_closed() -> None:
    reader = _reader(1)
    with _on(reader, 0):
        waiting = _in_thread(lambda: _read(reader, 1))
        _wait_for_waiting(reader)
        reader.close()
        assert waiting() is None
    assert _read(reader, 0) is None


def test_who_waits_goes_on_when_nothing_is_wanted_any_more() -> None:
    wanted = True
    is_told = threading.Event()
    reader = _reader(1, on_waiting=is_told.set)

    def read() -> Any:
        context = DispatchContext(1, 1, 1, "/device:CPU:0")
        with (
            dispatch_context.dispatching(context),
            reader.reading(lambda: wanted) as share,
        ):
            return share

    with _on(reader, 0):
        waiting = _in_thread(read)
        assert is_told.wait(_SECONDS)
        wanted = False
        reader.wake()
        assert waiting() is None
    assert _read(reader, 0) == 0


def test_a_lost_worker_loses_all_that_it_reads() -> None:
    lost: list[int] = []
    reader = _reader(3, on_lost=lambda share: lost.append(share.split))
    # A lane hangs at the end of a split, another has begun the next.
    hanging = _on(reader, 0)
    hanging.__enter__()
    assert _read(reader, 0) == 0
    with contextlib.suppress(ZeroDivisionError), _on(reader, 0) as share:
        assert share is not None
        assert share.split == 1
        connection.present().part(Residents).forget_worker(0)
        assert sorted(lost) == [0, 1]
        raise ZeroDivisionError  # lost already
    assert sorted(_read(reader, 1) for _ in range(3)) == [0, 1, 2]
    hanging.__exit__(None, None, None)
    assert reader.is_over


def test_a_lost_split_is_left_out_at_most_once() -> None:
    reader = _reader(2, Visitation.AT_MOST_ONCE)
    with _on(reader, 0):
        connection.present().part(Residents).forget_worker(0)
    assert [_read(reader, 1) for _ in range(2)] == [1, None]
    assert reader.is_over


def test_an_error_leaves_the_rest_of_the_split_at_most_once() -> None:
    reader = _reader(1, Visitation.AT_MOST_ONCE)
    with contextlib.suppress(ZeroDivisionError), _on(reader, 0):
        raise ZeroDivisionError
    with _on(reader, 0) as share:
        assert share is not None
        assert share.iterator == "it 0"


def test_a_new_life_of_a_worker_gets_a_new_iterator() -> None:
    made: list[int] = []

    def build(context: DispatchContext, split: int) -> tuple[str, bool]:
        made.append(context.generation)
        return "it", False

    reader = _reader(1, build=build)
    with _on(reader, 0, generation=1):
        pass
    assert _read(reader, 0, generation=2) == 0
    assert made == [1, 2]


def test_an_old_life_of_a_worker_gets_nothing() -> None:
    reader = _reader(1)
    with (
        _on(reader, 0, generation=2),
        pytest.raises(tf.errors.AbortedError, match="generation=1"),
        _on(reader, 0, generation=1),
    ):
        pass


def test_an_iterator_that_cannot_be_made_is_an_error_of_the_closure() -> None:
    def build(context: DispatchContext, split: int) -> tuple[str, bool]:
        raise FileNotFoundError("no such file")

    reader = _reader(1, build=build)
    with pytest.raises(FileNotFoundError), _on(reader, 0):
        pass
    assert not reader.is_over


def _reads_rest(reader: SplitReader, worker: int) -> tuple[int, Any]:
    with _on(reader, worker) as share:
        assert share is not None
        share.exhausted()
        return share.split, share.iterator


@pytest.mark.parametrize("visitation", list(Visitation))
def test_a_worker_that_leaves_hands_on_the_rest_of_its_split(
    visitation: Visitation,
) -> None:
    lost: list[int] = []
    reader = SplitReader(
        lambda context, split, skip: (skip, False),
        SplitLedger(2, visitation),
        on_lost=lambda share: lost.append(share.split),
    )
    for _ in range(2):
        with _on(reader, 0) as share:
            assert share is not None
            share.count(3)
    connection.present().part(Residents).release_worker(0)
    with _on(reader, 1) as share:
        assert share is not None
        assert (share.split, share.iterator) == (0, 6)
        share.count(1)
    connection.present().part(Residents).release_worker(1)
    assert _reads_rest(reader, 2) == (0, 7)
    assert _reads_rest(reader, 2) == (1, 0)
    assert reader.is_over
    assert not lost


def test_what_has_to_be_counted_as_a_whole_is_read_again() -> None:
    lost: list[int] = []
    reader = SplitReader(
        lambda context, split, skip: (skip, False),
        SplitLedger(1),
        hands_on=False,
        on_lost=lambda share: lost.append(share.split),
    )
    with _on(reader, 0) as share:
        assert share is not None
        share.count(3)
    connection.present().part(Residents).release_worker(0)
    assert lost == [0]
    assert _reads_rest(reader, 1) == (0, 0)
