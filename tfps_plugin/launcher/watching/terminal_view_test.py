import dataclasses

import pytest

from tfps_plugin.launcher.watching import terminal_view
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.cluster_state import JobState
from tfps_plugin.monitoring.state.testing import example_state


def _printed(
    state: ClusterState, width: int, history: tuple[float, ...] = ()
) -> str:
    console = terminal_view.new_console(width=width)
    with console.capture() as captured:
        console.print(terminal_view.view(state, width, history))
    return captured.get()


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_nothing_is_cut_off(width: int) -> None:
    text = _printed(example_state(), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())


def test_a_narrow_terminal_shows_what_matters() -> None:
    text = _printed(example_state(), 80)
    for part in (
        "train.py",
        "fit of ranking, epoch 3 of 10, step 4,200 of 10,000, 1 h 0 min",
        "120 steps/s",
        "loss 0.4321  auc 0.771",
        "/checkpoints/ckpt-2, 1 min 40 s ago",
        "healthy",
        "lost",
        "10.0.0.3:2222",
        "70 %",
        "9.6 GB",
        "ranking/user/embeddings 61,000 rows/s",
        "Worker 1 at 10.0.0.3:2222 is lost",
    ):
        assert part in text, part
    assert "restarts" not in text


def test_a_wide_terminal_shows_more() -> None:
    text = _printed(example_state(), 140)
    for part in ("restarts", "retries", "limit", "updates/s", "stale"):
        assert part in text, part


def test_a_job_that_has_not_begun_says_so() -> None:
    state = dataclasses.replace(
        example_state(), job=JobState(), events=(), last_checkpoint=None
    )
    assert "nothing yet" in _printed(state, 80)


def test_a_custom_loop_is_named() -> None:
    job = JobState(is_running=True, total_steps=1234)
    state = dataclasses.replace(example_state(), job=job)
    assert "a custom loop, 1,234 steps so far" in _printed(state, 80)


def test_the_speed_of_the_past_is_a_curve() -> None:
    text = _printed(example_state(), 120, history=(0.0, 60.0, 120.0))
    assert "▁▅█" in text


def test_markup_in_names_is_text() -> None:
    job = dataclasses.replace(example_state().job, work="fit of [red]model")
    state = dataclasses.replace(example_state(), job=job)
    assert "fit of [red]model" in _printed(state, 100)
