"""What the chief tells the tasks of its cluster, as text."""

import dataclasses
import json

from tfps_plugin import errors


@dataclasses.dataclass(frozen=True)
class ChiefHere:
    """A chief has connected; it is the one to watch from now on.

    Attributes:
        chief_id: A name that no other connection of a chief has.
        address: `"host:port"` where the chief answers probes.
        incarnation: What the chief's own server says, see `TaskStatus`.
    """

    chief_id: str
    address: str
    incarnation: int


@dataclasses.dataclass(frozen=True)
class JobOver:
    """The job is over and its tasks may end.

    Attributes:
        chief_id: Which chief says so.
    """

    chief_id: str


Message = ChiefHere | JobOver
_KINDS: dict[str, type[ChiefHere] | type[JobOver]] = {
    "chief_here": ChiefHere,
    "job_over": JobOver,
}


def encode(message: Message) -> str:
    """The message as text."""
    (kind,) = (kind for kind, cls in _KINDS.items() if isinstance(message, cls))
    return json.dumps({"kind": kind, **dataclasses.asdict(message)})


def decode(text: str) -> Message:
    """The message that `encode` turned into this text.

    Raises:
        InternalError: If it is none: chief and task then run different
            releases of this package.
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
