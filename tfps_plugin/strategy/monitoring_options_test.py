import pytest

import tfps_plugin as tfps


@pytest.mark.parametrize("token", ["secret\n", "two words", "schlüssel", "\t"])
def test_a_token_that_no_header_can_have_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as raised:
        tfps.MonitoringOptions(address="0.0.0.0:8470", token=token)
    assert token not in str(raised.value)


def test_an_address_of_the_network_needs_a_token() -> None:
    with pytest.raises(ValueError, match="or a token"):
        tfps.MonitoringOptions(address="0.0.0.0:8470", token="")
    for address in ("127.0.0.1:0", "localhost:8470", "[::1]:8470"):
        assert tfps.MonitoringOptions(address=address).address == address
