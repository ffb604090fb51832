"""Group of options of a strategy: who may watch the job, and where."""

import dataclasses
import ipaddress
import os

from tfps_plugin.cluster import spec

ADDRESS_VARIABLE = "TFPS_MONITOR_ADDRESS"
TOKEN_VARIABLE = "TFPS_MONITOR_TOKEN"


def _environment(name: str) -> str | None:
    return os.environ.get(name) or None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitoringOptions:
    """Options for watching a job: `monitoring` of a strategy.

    ```python
    strategy = tfps.ParameterServerStrategy(
        monitoring=tfps.MonitoringOptions(address="127.0.0.1:8470")
    )
    ```

    `tfps status`, `tfps top` and `tfps dashboard` find the jobs of the same
    user on this machine by themselves, without an address. See
    `docs/monitoring.md`.

    Args:
        address: `"host:port"` at which the chief tells its state over HTTP, to
            `tfps top --connect` and to Prometheus. None: at none, unless the
            environment has `TFPS_MONITOR_ADDRESS`. Port 0 is any free port,
            which the log names.
        token: Secret that whoever asks at the address has to send. It is needed
            unless the host is a loopback address. None: the environment's
            `TFPS_MONITOR_TOKEN`, if it has any.
        enabled: Whether the job can be watched at all. If not, the chief opens
            no socket.
        count_rows: Whether to count the rows that lookups ask for, of each
            table and shard. It takes three small operations of the worker for
            each lookup.

    Raises:
        ValueError: If the address is malformed, or is not a loopback address
            and there is no token, or the token has a character that no header
            of HTTP can have, such as a line break at its end.
    """

    address: str | None = dataclasses.field(
        default_factory=lambda: _environment(ADDRESS_VARIABLE)
    )
    token: str | None = dataclasses.field(
        default_factory=lambda: _environment(TOKEN_VARIABLE), repr=False
    )
    enabled: bool = True
    count_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("enabled", "count_rows"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(
                    f"{name} must be True or False. Received: {name}={value!r}"
                )
        if self.token and not is_sendable(self.token):
            raise ValueError(
                "The token of the monitor cannot be sent in a header of HTTP. "
                "Expected letters, digits and signs of ASCII, without spaces "
                f"or line breaks. Received: {len(self.token)} characters with "
                "others among them (the token is not shown). If it comes from "
                f"a file, see that {TOKEN_VARIABLE} has no line break at its "
                "end."
            )
        if self.address is None:
            return
        try:
            host, _ = spec.split_address(self.address)
            is_local = is_loopback(host)
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(
                'The address of the monitor must be "host:port". Received: '
                f"address={self.address!r}"
            ) from error
        if not is_local and not self.token:
            raise ValueError(
                "Whoever reaches the monitor's address can read the state of "
                "the job. Expected a loopback address, such as "
                '"127.0.0.1:8470", or a token. Received: '
                f"address={self.address!r}, token={self.token!r}. Give a token,"
                f" or set {TOKEN_VARIABLE}, to the same in both places."
            )


def is_sendable(token: str) -> bool:
    """Returns whether a header of HTTP can have a token."""
    return all("!" <= character <= "~" for character in token)


def is_loopback(host: str) -> bool:
    """Returns whether only processes of this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
