"""Messages between the chief and the tasks of its cluster, as text."""

import dataclasses
import json

from tfps_plugin import errors


@dataclasses.dataclass(frozen=True)
class ChiefHere:
    """A chief has connected; it is the one to watch from now on.

    Attributes:
        chief_id: A unique name of this connection of a chief.
        address: `"host:port"` at which the chief answers probes.
        incarnation: Incarnation of the chief's own server, see `TaskStatus`.
    """

    chief_id: str
    address: str
    incarnation: int


@dataclasses.dataclass(frozen=True)
class JobOver:
    """The job is over and its tasks may end.

    Attributes:
        chief_id: The chief whose job is over.
    """

    chief_id: str


@dataclasses.dataclass(frozen=True)
class Leaving:
    """A worker is told to end; it asks the chief to let it go before.

    Attributes:
        chief_id: The chief that is asked.
        worker_index: Index of the worker.
        seconds: Time after which it ends in any case.
    """

    chief_id: str
    worker_index: int
    seconds: float


Message = ChiefHere | JobOver | Leaving
_KINDS: dict[str, type[ChiefHere] | type[JobOver] | type[Leaving]] = {
    "chief_here": ChiefHere,
    "job_over": JobOver,
    "leaving": Leaving,
}


def encode(message: Message) -> str:
    """Returns the message as text."""
    (kind,) = (kind for kind, cls in _KINDS.items() if isinstance(message, cls))
    return json.dumps({"kind": kind, **dataclasses.asdict(message)})


def decode(text: str) -> Message:
    """Returns the message that `encode` turned into this text.

    Raises:
        InternalError: If the text is not a message: chief and task then run
            different releases of this package.
    """
    try:
        fields = json.loads(text)
        return _KINDS[fields.pop("kind")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.InternalError(
            "A task got a message that it does not understand. Received: "
            f"text={text!r}. Install the same release of tfps_plugin on all "
            "machines; if it is the same, please report this."
        ) from error
