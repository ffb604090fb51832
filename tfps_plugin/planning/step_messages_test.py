from tfps_plugin.planning import step_messages
from tfps_plugin.planning.work import PsWork
from tfps_plugin.transport.explanation import Body
from tfps_plugin.transport.explanation import Explanation
from tfps_plugin.transport.explanation import Sent

_PS = "/job:ps/replica:0/task:{}"


def _sent(source: str, destination: str, wave: int, unsized: int = 0) -> Sent:
    return Sent(source, destination, wave, 3, 0, 1, 100, unsized)


def test_messages_of_the_loop_count_and_those_of_the_call_do_not() -> None:
    call = Body("steps", 9, (_sent("", _PS.format(0), 5),))
    step = Body(
        "steps, While body",
        20,
        (
            _sent("", _PS.format(0), 0, 2),
            _sent("", _PS.format(11), 0),
            _sent(_PS.format(0), "", 1, 2),
        ),
        operations=(("", 50), (_PS.format(0), 30), (_PS.format(11), 4)),
    )
    inner = Body("steps, While body, While body", 4, (_sent("", "", 0),))
    found = step_messages.of_step(Explanation((call, step, inner)))
    assert found.ps == {
        0: PsWork(messages=2, operations=30),
        11: PsWork(messages=1, operations=4),
    }
    assert (found.waves, found.unsized, found.inner) == (2, 4, 1)


def test_a_step_without_a_loop_is_the_function_itself() -> None:
    step = Body("step", 1, (_sent("", _PS.format(0), 0),))
    assert step_messages.of_step(Explanation((step,))).ps[0].messages == 1


def test_nothing_travels_in_an_empty_explanation() -> None:
    found = step_messages.of_step(Explanation(()))
    assert (found.ps, found.waves) == ({}, 0)
