import hypothesis
from hypothesis import strategies as st

from tfps_plugin.planning import memory
from tfps_plugin.planning.memory import Held
from tfps_plugin.planning.memory import Keeping

_MIB = 1 << 20
_HELD = st.lists(
    st.builds(
        Held,
        st.integers(0, 3),
        st.integers(0, 1 << 40),
        st.integers(0, 1 << 30),
        st.booleans(),
        st.booleans(),
    ),
    max_size=20,
)


def test_parts_by_hand() -> None:
    held = [
        Held(0, 4 * _MIB, num_rows=1000, is_everywhere=True),
        Held(0, 4 * _MIB, num_rows=1000, is_slot=True, is_everywhere=True),
        Held(1, 2 * _MIB, num_rows=500, is_everywhere=True),
        # Too small for fingerprints.
        Held(1, 1000, num_rows=10),
    ]
    keeping = Keeping(increments=True, standby=True, moves=True)
    first, second = memory.of_all(held, 2, keeping, [7, 8])
    assert (first.variables, first.slots) == (4 * _MIB, 4 * _MIB)
    assert (second.variables, second.slots) == (2 * _MIB + 1000, 0)
    assert first.checkpoint == 8 * _MIB
    # The previous one of the first is the last.
    assert (first.standby, second.standby) == (2 * _MIB + 1000, 8 * _MIB)
    assert (first.marks, second.marks) == (16_000, 4_000)
    # Of two halves, each of three has two thirds.
    assert first.moving == 8 * _MIB * 2 // 3
    assert (first.messages, second.messages) == (7, 8)
    assert second.total == (
        (2 * _MIB + 1000) * 2  # and the copies of a checkpoint
        + 8 * _MIB
        + 4_000
        + 2 * _MIB * 2 // 3
        + 8
        + memory.BASE_BYTES
    )


@hypothesis.given(_HELD, st.booleans(), st.booleans())
def test_nothing_is_lost_and_nothing_counted_twice(
    held: list[Held], checkpoints: bool, standby: bool
) -> None:
    keeping = Keeping(checkpoints=checkpoints, standby=standby)
    found = memory.of_all(held, 4, keeping)
    total = sum(each.num_bytes for each in held)
    assert sum(each.variables + each.slots for each in found) == total
    assert sum(each.standby for each in found) == (total if standby else 0)
    assert sum(each.checkpoint for each in found) == (
        total if checkpoints else 0
    )
