"""Tests of handles taken from areas on this process's own device."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables import testing
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.kinds.handle_areas import HandleArea
from tfps_plugin.variables.kinds.handle_areas import HandleAreas
from tfps_plugin.variables.kinds.handle_areas import Place
from tfps_plugin.variables.kinds.handle_areas import StagedHandles
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable


def _staged(*variables: RemoteVariable) -> tuple[StagedHandles, HandleArea]:
    place = Place(testing.LOCAL_DEVICE, ())
    handles = StagedHandles({place: [v._weakly(_handle) for v in variables]})
    return handles, handles.areas[place]


def _handle(variable: RemoteVariable) -> tf.Tensor:
    return variable.own_handle


def _reader(area: HandleArea) -> Callable[[], list[float]]:
    """Returns a function that reads all variables of an area."""

    @tf.function
    def read() -> list[tf.Tensor]:
        return [
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            for handle in area.take()
        ]

    return lambda: [float(value) for value in read()]


def _is_there(area: HandleArea) -> bool:
    """Returns whether an area has handles."""
    return bool(tf.raw_ops.VarIsInitializedOp(resource=area._variable()))


def test_a_function_finds_the_handles_of_now() -> None:
    variables = [testing.remote_variable(float(i)) for i in range(3)]
    handles, area = _staged(*variables)
    read = _reader(area)
    handles.stage()
    assert read() == [0.0, 1.0, 2.0]
    variables[1].assign(5.0)
    assert read() == [0.0, 5.0, 2.0]
    # As if its parameter server had been replaced.
    variables[1].remake()
    variables[1].assign(7.0)
    handles.stage()
    assert read() == [0.0, 7.0, 2.0]
    assert _is_there(area)


def test_a_function_whose_area_is_missing_fails_at_once() -> None:
    """As on a ps that was started again; it blocks no thread there."""
    variable = testing.remote_variable(1.0)
    handles, area = _staged(variable)
    read = _reader(area)
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        read()
    assert chief_reads.is_about_the_cluster(caught.value)
    handles.stage()
    assert read() == [1.0]
    area.clear()
    with pytest.raises(tf.errors.FailedPreconditionError):
        read()


def test_handles_may_be_vectors() -> None:
    variables = [testing.remote_variable(float(i)) for i in range(4)]
    handles = [tf.stack([v.own_handle for v in variables[:2]])]
    handles.append(tf.stack([v.own_handle for v in variables[2:]]))
    area = HandleArea(Place(testing.LOCAL_DEVICE, (2,)), 2)

    @tf.function
    def read() -> list[tf.Tensor]:
        return [
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            for vector in area.take()
            for handle in tf.unstack(vector)
        ]

    area.put(handles)
    assert [float(value) for value in read()] == [0.0, 1.0, 2.0, 3.0]


def test_they_are_put_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = testing.remote_variable(1.0)
    handles, _ = _staged(variable)
    put: list[Any] = []
    monkeypatch.setattr(HandleArea, "_put", lambda _, each: put.append(each))
    for _ in range(3):
        handles.stage()
    # The resource of another variable is made again.
    testing.remote_variable(2.0).remake()
    handles.stage()
    assert len(put) == 1


def test_an_area_is_emptied_when_a_variable_is_gone() -> None:
    variables = [testing.remote_variable(1.0) for _ in range(2)]
    handles, area = _staged(*variables)
    handles.stage()
    del variables[0]
    gc.collect()
    # Creating the next variable frees the memory of this one.
    testing.remote_variable(2.0)
    assert not _is_there(area)
    with pytest.raises(errors.VariableCreationError, match="not exist any"):
        handles.stage()


def test_an_area_is_emptied_when_its_function_is_gone() -> None:
    variable = testing.remote_variable(1.0)
    handles, area = _staged(variable)
    handles.stage()
    assert _is_there(area)
    del handles
    gc.collect()
    connection.present().part(HandleAreas).free_abandoned()
    assert not _is_there(area)


def test_an_area_that_cannot_be_emptied_fails_no_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variables = [testing.remote_variable(1.0)]
    handles, area = _staged(*variables)
    handles.stage()
    variables.clear()
    gc.collect()
    # As if its ps had been removed from the cluster.
    lost = Place("/job:ps/task:7/device:CPU:0", ())
    monkeypatch.setattr(area, "place", lost)
    assert float(testing.remote_variable(2.0)) == 2.0
    assert "/job:ps/task:7" in caplog.text


def test_what_was_put_there_since_stays() -> None:
    variable = testing.remote_variable(1.0)
    handles, area = _staged(variable)
    handles.stage()
    variable.remake()
    variable.assign(3.0)
    gc.collect()
    # The first handle is gone, but the area has not been emptied yet.
    area.put([variable.own_handle])
    connection.present().part(HandleAreas).free_abandoned()
    assert _reader(area)() == [3.0]


def test_what_could_not_be_put_there_is_put_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = testing.remote_variable(4.0)
    handles, area = _staged(variable)

    def fail(*_: object) -> None:
        raise tf.errors.UnavailableError(None, None, "lost")

    with monkeypatch.context() as patch:
        patch.setattr(HandleArea, "_put", fail)
        with pytest.raises(tf.errors.UnavailableError):
            handles.stage()
    handles.stage()
    assert _reader(area)() == [4.0]


def test_lanes_put_them_there_at_the_same_time() -> None:
    variables = [testing.remote_variable(float(i)) for i in range(4)]
    handles, area = _staged(*variables)
    read = _reader(area)
    handles.stage()
    read()
    start = threading.Barrier(4)
    seen: list[list[float]] = []

    def lane() -> None:
        start.wait(30.0)
        for _ in range(20):
            connection.present().part(HandleAreas).handles_have_changed()
            handles.stage()
            seen.append(read())

    threads = [threading.Thread(target=lane) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert seen == [[0.0, 1.0, 2.0, 3.0]] * 80
