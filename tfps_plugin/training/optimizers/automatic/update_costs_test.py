import hypothesis
from hypothesis import strategies as st

from tfps_plugin.training.optimizers.automatic import update_costs
from tfps_plugin.training.optimizers.automatic.update_costs import StepTimes
from tfps_plugin.training.optimizers.automatic.update_costs import UpdateCost

_SECONDS = st.floats(0, 1, allow_subnormal=False)
_COSTS = st.lists(
    st.dictionaries(st.sampled_from(["ps0", "ps1"]), _SECONDS, min_size=1),
    max_size=8,
).map(lambda all_: [UpdateCost(f"t{i}", s) for i, s in enumerate(all_)])


def _sum(costs: list[UpdateCost], device: str) -> float:
    return sum(cost.seconds.get(device, 0.0) for cost in costs)


def test_cheap_tables_are_updated_whole_and_big_ones_are_not() -> None:
    small = UpdateCost("small", {"ps0": 0.0001})
    big = UpdateCost("big", {"ps0": 0.002, "ps1": 0.002})
    assert update_costs.affordable([big, small], 0.01) == [small]
    assert update_costs.affordable([big, small], 0.03) == [small, big]
    assert update_costs.affordable([big, small], 0.0005) == []


def test_what_is_chosen_already_counts() -> None:
    first = UpdateCost("first", {"ps0": 0.0008})
    second = UpdateCost("second", {"ps0": 0.0005})
    elsewhere = UpdateCost("elsewhere", {"ps1": 0.0005})
    assert update_costs.affordable([second, elsewhere], 0.01, [first]) == [
        elsewhere
    ]


@hypothesis.given(costs=_COSTS, seconds=st.floats(0, 20))
def test_no_ps_spends_more_than_its_share(
    costs: list[UpdateCost], seconds: float
) -> None:
    found = update_costs.affordable(costs, seconds)
    most = update_costs.SHARE_OF_A_STEP * seconds
    for device in ("ps0", "ps1"):
        assert _sum(found, device) <= most * (1 + 1e-9)
    # No omitted table would fit beside those.
    for cost in costs:
        if cost not in found:
            assert any(
                _sum(found, device) + each > most * (1 - 1e-9)
                for device, each in cost.seconds.items()
            )


def test_a_choice_is_made_again_where_steps_take_another_time() -> None:
    times = StepTimes()
    # The first calls run beside others that trace.
    found = [times.differs(seconds) for seconds in (0.2, 0.15, 0.005, 0.009)]
    assert found == [True, False, True, False]


def test_choices_come_to_an_end() -> None:
    times = StepTimes()
    assert sum(times.differs(10.0 ** (n % 2)) for n in range(100)) == 4
