"""Tests of the input context."""

import threading

import pytest

from tfps_plugin.inputs import input_context


def test_each_worker_reads_its_own_share() -> None:
    context = input_context.for_worker(2, 5)
    assert context.input_pipeline_id == 2
    assert context.num_input_pipelines == 5
    assert context.num_replicas_in_sync == 1
    assert context.get_per_replica_batch_size(32) == 32


def test_current_is_the_innermost() -> None:
    outer = input_context.for_worker(0, 2)
    inner = input_context.for_worker(1, 2)
    assert input_context.current() is None
    with input_context.building_for(outer):
        with input_context.building_for(inner):
            assert input_context.current() is inner
        assert input_context.current() is outer
    assert input_context.current() is None


def test_left_when_building_raises() -> None:
    with (
        pytest.raises(RuntimeError, match="dataset"),
        input_context.building_for(input_context.for_worker(0, 1)),
    ):
        raise RuntimeError("dataset")
    assert input_context.current() is None


def test_other_threads_do_not_see_it() -> None:
    seen: list[object] = []
    with input_context.building_for(input_context.for_worker(0, 1)):
        thread = threading.Thread(
            target=lambda: seen.append(input_context.current())
        )
        thread.start()
        thread.join(timeout=10)
    assert seen == [None]
