import threading
from collections.abc import Iterator

from tfps_plugin._compat.runtime.living_objects import instances_of

_SECONDS = 0.5


class _Base:
    pass


class _Derived(_Base):
    pass


class _Proxy:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise AssertionError("A proxy is asked for what it stands for.")


def test_instances_of_classes_and_of_their_subclasses() -> None:
    made = [_Base(), _Derived(), _Derived()]
    _proxy = _Proxy()
    assert {id(each) for each in instances_of(_Base)} == set(map(id, made))
    assert len(instances_of(_Derived)) == 2
    assert len(instances_of(_Derived, _Base)) == 3


def test_objects_that_are_gone_are_not_returned() -> None:
    made = _Base()
    assert instances_of(_Base) == [made]
    del made
    assert instances_of(_Base) == []


def test_threads_that_make_tuples_go_on() -> None:
    stop = threading.Event()
    errors: list[Exception] = []

    def numbers() -> Iterator[int]:
        yield from range(30)

    def make_tuples() -> None:
        while not stop.is_set():
            try:
                tuple(numbers())
            except SystemError as error:
                errors.append(error)
                return

    kept = _Base()
    threads = [threading.Thread(target=make_tuples) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = threading.Timer(_SECONDS, stop.set)
    end.start()
    while not stop.is_set():
        assert instances_of(_Base) == [kept]
    for thread in (*threads, end):
        thread.join()
    assert not errors
