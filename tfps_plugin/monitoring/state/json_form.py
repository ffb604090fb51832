"""State of a job as JSON, and back."""

import dataclasses
import json
import math
from typing import Any

from tfps_plugin import errors
from tfps_plugin.monitoring.state.cluster_state import CheckpointState
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.cluster_state import EventState
from tfps_plugin.monitoring.state.cluster_state import JobState
from tfps_plugin.monitoring.state.cluster_state import ParameterServerState
from tfps_plugin.monitoring.state.cluster_state import TableState
from tfps_plugin.monitoring.state.cluster_state import TaskState
from tfps_plugin.monitoring.state.cluster_state import WorkerState


def encode(state: ClusterState, *, indent: int | None = None) -> str:
    """Returns a state as JSON.

    Args:
        state: The state.
        indent: As for `json.dumps`.

    Returns:
        An object with the attributes of `ClusterState`. JSON has no infinity
        and no NaN: a metric of such a value is a string, "nan", "inf" or
        "-inf".
    """
    return json.dumps(
        _plain(dataclasses.asdict(state)), indent=indent, allow_nan=False
    )


def decode(text: str | bytes) -> ClusterState:
    """Returns the state that `encode` has turned into a text.

    Raises:
        InternalError: If the text is not a state: both processes then run
            different releases of this package.
    """
    try:
        fields = json.loads(text)
        job = dict(fields.pop("job"))
        job["metrics"] = {
            name: float(value) for name, value in job["metrics"].items()
        }
        checkpoint = fields.pop("last_checkpoint")
        return ClusterState(
            chief=TaskState(**fields.pop("chief")),
            workers=tuple(WorkerState(**w) for w in fields.pop("workers")),
            parameter_servers=tuple(
                ParameterServerState(
                    tables=tuple(TableState(**t) for t in ps.pop("tables")),
                    **ps,
                )
                for ps in fields.pop("parameter_servers")
            ),
            job=JobState(**job),
            last_checkpoint=(
                None if checkpoint is None else CheckpointState(**checkpoint)
            ),
            events=tuple(EventState(**e) for e in fields.pop("events")),
            **fields,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.InternalError(
            "The state of a job was not understood. Received: "
            f"text={text[:80]!r} ({error}). Install the same release of "
            "tfps_plugin in both places; if it is the same, please report this."
        ) from error


def _plain(value: Any) -> Any:
    """Returns what JSON can write."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
