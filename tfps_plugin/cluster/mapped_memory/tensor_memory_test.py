"""Tests of the memory of tensors."""

import numpy as np
import pytest

from tfps_plugin.cluster.mapped_memory import tensor_memory

_MILLION = 1 << 20


def _is_alone(array: np.ndarray) -> bool:
    return tensor_memory.is_mapping_of_its_own(array.ctypes.data, array.nbytes)


@pytest.mark.parametrize("num_bytes", [40 * _MILLION, 40 * _MILLION + 1_000])
def test_a_large_array_has_a_mapping_of_its_own(num_bytes: int) -> None:
    assert _is_alone(np.zeros(num_bytes, np.uint8))


def test_a_small_array_has_none() -> None:
    # Two, of which none is beside memory that is not used.
    arrays = [np.zeros(1_000, np.uint8) for _ in range(2)]
    assert not any(map(_is_alone, arrays))


def test_a_tensor_in_a_pool_has_none() -> None:
    pool = np.zeros(80 * _MILLION, np.uint64)
    # At the beginning, it has the header of the whole pool.
    assert not _is_alone(pool[: 40 * _MILLION])
    # Elsewhere, numbers of other tensors, which may look like one.
    for header in ([0, 0], [0, 2], [3, 40 * 8 * _MILLION + 2]):
        pool[10:12] = header
        assert not _is_alone(pool[12 : 12 + 40 * _MILLION])


def test_the_choice_of_a_user_stays() -> None:
    environment: dict[str, str] = {}
    tensor_memory.take_from_c_library(environment)
    assert environment == {tensor_memory.WITHOUT_POOL: "1"}
    environment = {tensor_memory.WITHOUT_POOL: "0"}
    tensor_memory.take_from_c_library(environment)
    assert environment == {tensor_memory.WITHOUT_POOL: "0"}
