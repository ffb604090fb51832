from tfps_plugin.evaluation.silence import Silence


def _silence() -> Silence:
    return Silence(0, start_timeout_seconds=100, silence_seconds=10)


def test_a_job_may_be_slow_to_begin() -> None:
    silence = _silence()
    silence.probed(False, 99)
    assert not silence.is_over(99)
    assert silence.is_over(100)


def test_a_job_is_over_when_it_was_silent_for_long_enough() -> None:
    silence = _silence()
    silence.probed(True, 50)
    silence.probed(False, 59)
    assert not silence.is_over(59)
    assert silence.is_over(60)


def test_a_job_that_answers_again_goes_on() -> None:
    silence = _silence()
    silence.probed(True, 50)
    silence.probed(True, 59)
    assert not silence.is_over(68)
