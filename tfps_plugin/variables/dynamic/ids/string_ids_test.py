"""Tests of strings as ids: serving processes compute the same without it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.exports import string_hash
from tfps_plugin.variables.dynamic.ids import string_ids


@given(st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=20))))
def test_ids_are_those_of_the_layer(strings: list[str | bytes]) -> None:
    encoded = [s.encode() if isinstance(s, str) else s for s in strings]
    expected = [
        int(string_ids.as_integers(string, "table")) for string in encoded
    ]
    np.testing.assert_array_equal(string_hash.ids_of(strings), expected)


def test_long_strings() -> None:
    strings = [b"x" * length for length in (7, 8, 255, 256, 1000)]
    np.testing.assert_array_equal(
        string_hash.ids_of(strings), string_ids.as_integers(strings, "table")
    )


def test_refuses_what_is_no_string() -> None:
    with pytest.raises(TypeError, match="int 3"):
        string_hash.ids_of(["a", 3])  # type: ignore[list-item]
