"""What a lane's present call needs."""

import math
import time

import pytest

from tfps_plugin.cluster.calls.present_call import PresentCall


def test_only_while_it_lasts() -> None:
    call = PresentCall()
    assert not call.needs([0, 1], math.inf)
    with call.needing(frozenset({1, 2})):
        assert call.needs([0, 1], math.inf)
        assert not call.needs([0], math.inf)
    assert not call.needs([0, 1], math.inf)
    with pytest.raises(ValueError, match="x"), call.needing({0}):
        raise ValueError("x")
    assert not call.needs([0], math.inf)


def test_only_if_it_began_before() -> None:
    call = PresentCall()
    before = time.monotonic()
    with call.needing({0}):
        assert not call.needs([0], before)
        assert call.needs([0], time.monotonic() + 1)
