import numpy as np

from tfps_plugin.monitoring.state.progress import Progress
from tfps_plugin.monitoring.state.progress import numbers


def test_nothing_runs_at_first() -> None:
    now = Progress().now()
    assert (now.work, now.is_running, now.epoch, now.step) == (
        "",
        False,
        None,
        None,
    )


def test_an_epoch_is_seen_while_it_runs_and_after_it() -> None:
    progress = Progress()
    progress.begin("fit of model", 3, 100, lambda: 640.0)
    progress.begin_epoch(2)
    steps, logs = [7], {"loss": np.float32(0.5)}
    progress.watch(lambda: steps[0], logs)
    now = progress.now()
    assert (now.epoch, now.num_epochs, now.step, now.steps_per_epoch) == (
        2,
        3,
        7,
        100,
    )
    assert now.metrics == {"loss": 0.5}
    assert progress.num_examples() == 640
    steps[0], logs["loss"] = 100, np.float32(0.25)
    progress.end_epoch({"loss": 0.25, "val_loss": 0.75})
    now = progress.now()
    assert now.step == 100
    assert now.metrics == {"loss": 0.25, "val_loss": 0.75}
    progress.end()
    now = progress.now()
    assert not now.is_running
    assert (now.epoch, now.step) == (2, 100)
    assert now.metrics["val_loss"] == 0.75


def test_examples_of_validation_do_not_count() -> None:
    progress = Progress()
    counted = [0.0]
    progress.begin("fit of model", 2, 100, lambda: counted[0])
    for epoch in (1, 2):
        progress.begin_epoch(epoch)
        counted[0] = 30.0
        assert progress.num_examples() == 30 + 50 * (epoch - 1)
        counted[0] = 50.0
        progress.end_steps()
        # The same metric counts the validation.
        counted[0] = 7.0
        assert progress.num_examples() == 50 * epoch
        progress.end_epoch({})
        counted[0] = 0.0


def test_a_count_that_another_epoch_has_overtaken_is_unknown() -> None:
    progress = Progress()
    counted: list[int] = []

    def count() -> float:
        counted.append(len(counted))
        if len(counted) == 1:
            # The steps end meanwhile, and are counted for the end.
            progress.end_steps()
        return 50.0

    progress.begin("fit of model", 2, 100, count)
    progress.begin_epoch(1)
    assert progress.num_examples() is None
    assert progress.num_examples() == 50


def test_what_has_ended_counts_no_examples() -> None:
    progress = Progress()
    progress.begin("fit of model", 1, 100, lambda: 640.0)
    progress.end()
    assert progress.num_examples() is None


def test_a_count_that_is_lost_is_unknown() -> None:
    progress = Progress()
    progress.begin("fit of model", 2, 100, lambda: None)
    progress.begin_epoch(1)
    assert progress.num_examples() is None


def test_a_new_epoch_begins_at_step_zero_with_the_metrics_so_far() -> None:
    progress = Progress()
    progress.begin("fit of model", 3, 100)
    progress.begin_epoch(1)
    progress.watch(lambda: 100, {})
    progress.end_epoch({"loss": 0.25})
    progress.begin_epoch(2)
    now = progress.now()
    assert (now.step, now.metrics) == (0, {"loss": 0.25})


def test_logs_that_are_no_numbers_are_left_out() -> None:
    assert numbers(
        {"loss": np.array(0.5), "matrix": np.eye(2), "text": "x", "n": 3}
    ) == {"loss": 0.5, "n": 3.0}
