"""Tests of uses of workers."""

import threading

from tfps_plugin.coordinator.elastic.uses import Uses

_TIMEOUT_SECONDS = 30.0


def test_a_worker_is_free_when_all_uses_have_ended() -> None:
    uses = Uses()
    first, second = uses.begin([0, 1]), uses.begin([1, 2])
    assert first.workers == [0, 1]
    assert not uses.wait_until_free(1, 0.0)
    first.release()
    first.release()
    assert uses.wait_until_free(0, 0.0)
    assert not uses.wait_until_free(1, 0.0)
    done = threading.Event()

    def wait() -> None:
        if uses.wait_until_free(1, _TIMEOUT_SECONDS):
            done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    second.release()
    assert done.wait(_TIMEOUT_SECONDS)
    thread.join()


def test_a_use_that_is_forgotten_has_ended() -> None:
    uses = Uses()
    use = uses.begin([0])
    del use
    assert uses.wait_until_free(0, 0.0)
