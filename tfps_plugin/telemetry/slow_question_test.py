import threading
import time

from tfps_plugin.telemetry.slow_question import SlowQuestion

_TIMEOUT_SECONDS = 30.0


def test_an_answer_has_its_time() -> None:
    question = SlowQuestion[int]("rows", wait_seconds=_TIMEOUT_SECONDS)
    before = time.monotonic()
    answer = question.ask(lambda: 7)
    assert answer is not None
    assert answer.value == 7
    assert before <= answer.at <= time.monotonic()


def test_nobody_waits_for_a_task_that_hangs() -> None:
    question = SlowQuestion[int]("rows", wait_seconds=0.01)
    may_answer, asked = threading.Event(), []

    def hang() -> int:
        asked.append(threading.current_thread())
        assert may_answer.wait(_TIMEOUT_SECONDS)
        return 7

    for _ in range(3):
        assert question.ask(hang) is None
    # It was asked once.
    (thread,) = asked
    may_answer.set()
    thread.join(_TIMEOUT_SECONDS)
    # The late answer counts until there is another.
    may_answer.clear()
    answer = question.ask(hang)
    assert answer is not None
    assert answer.value == 7
    may_answer.set()
    asked[-1].join(_TIMEOUT_SECONDS)


def test_an_old_answer_does_not_count() -> None:
    question = SlowQuestion[int](
        "rows", wait_seconds=_TIMEOUT_SECONDS, age_seconds=-1.0
    )
    assert question.ask(lambda: 7) is None


def test_a_question_that_fails_has_no_answer() -> None:
    question = SlowQuestion[float]("rows", wait_seconds=_TIMEOUT_SECONDS)
    assert question.ask(lambda: 7.0) is not None
    assert question.ask(lambda: 1 / 0) is None
    again = question.ask(lambda: 8.0)
    assert again is not None
    assert again.value == 8
