"""Costs of the runtime: processor time for messages, operations, calls. Pure.

The defaults are those that `integration_tests/benchmarks/plan.py` has measured.
A machine of yours has others: the benchmark writes them as JSON.
"""

import dataclasses
import json
import pathlib
from typing import Self

from tfps_plugin import errors


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """Processor time of a task, in seconds.

    Attributes:
        ps_message: For a message that a parameter server gets or sends.
        ps_operation: For an operation of a parameter server.
        ps_element: For a number that such an operation computes.
        ps_byte: For a byte that a parameter server gets or sends.
        ps_call: For a call of a worker, on each parameter server.
        worker_message: For a message that a worker gets or sends.
        worker_byte: For a byte that a worker gets or sends.
        worker_call: For a call of a worker, on the worker.
        chief_step: For a step, on the chief.
        chief_call: For a call of a worker, on the chief.
    """

    ps_message: float = 350e-6
    ps_operation: float = 0.0
    ps_element: float = 1.2e-9
    ps_byte: float = 0.2e-9
    ps_call: float = 1.9e-3
    worker_message: float = 210e-6
    worker_byte: float = 0.36e-9
    worker_call: float = 5.8e-3
    chief_step: float = 200e-6
    chief_call: float = 3.4e-3

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value < float("inf")
            ):
                raise errors.PlanError(
                    "A cost is wrong. Expected seconds, not negative. "
                    f"Received: {field.name}={value!r}"
                )

    @classmethod
    def read(cls, path: str) -> Self:
        """Reads costs from a file of JSON, as the benchmark writes it.

        Args:
            path: Path of the file.

        Returns:
            The costs; those that the file does not have are the defaults.

        Raises:
            PlanError: If it is no such file.
        """
        try:
            found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise errors.PlanError(
                "The costs cannot be read. Expected a file of JSON such as "
                f'{{"ps_message": 1e-4}}. Received: {path!r}: {error}'
            ) from error
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(found, dict) or not found.keys() <= known:
            raise errors.PlanError(
                "The costs cannot be read. Expected an object with some of "
                f"the keys {', '.join(sorted(known))}. Received: {path!r} "
                f"with {found!r}"
            )
        return cls(**found)
