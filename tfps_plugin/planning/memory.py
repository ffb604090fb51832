"""Memory of each parameter server. Pure."""

import dataclasses
from collections.abc import Sequence

# Resident memory of a task server: 176 MiB before it holds anything, with its
# libraries, and up to 190 MiB that it was seen to keep of what it had freed.
BASE_BYTES = 380 << 20
# Rows of tables of this size and more have fingerprints.
_MARKED_BYTES = 1 << 20
_BYTES_OF_A_MARK = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A variable that a parameter server holds, or a shard of one.

    Attributes:
        ps: Index of the parameter server.
        num_bytes: Its size in memory.
        num_rows: Number of its rows; 0 unless it is a table or a slot of one.
        is_slot: Whether it belongs to an optimizer.
        is_everywhere: Whether its variable has shards on all parameter servers.
    """

    ps: int
    num_bytes: int
    num_rows: int = 0
    is_slot: bool = False
    is_everywhere: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Keeping:
    """Options by which parameter servers keep more than variables.

    Attributes:
        checkpoints: Whether checkpoints are written.
        increments: Whether some of them have only what has changed.
        standby: Whether each variable has a copy on the next ps.
        moves: Whether parameter servers are added while it trains.
    """

    checkpoints: bool = True
    increments: bool = False
    standby: bool = False
    moves: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PsMemory:
    """Bytes of one parameter server.

    Attributes:
        variables: Weights and other variables of the model.
        slots: Variables of the optimizer.
        checkpoint: Copies of both until a checkpoint is written.
        standby: Copies of what the previous parameter server holds.
        marks: Fingerprints of rows.
        moving: Room for the new part of tables when one is added.
        messages: Messages of all workers that are on their way.
        base: The process itself.
    """

    variables: int
    slots: int
    checkpoint: int = 0
    standby: int = 0
    marks: int = 0
    moving: int = 0
    messages: int = 0
    base: int = BASE_BYTES

    @property
    def total(self) -> int:
        """All of it at the same time, the most that it may take."""
        return sum(dataclasses.astuple(self))


def of_all(
    held: Sequence[Held],
    num_ps: int,
    keeping: Keeping,
    message_bytes: Sequence[int] = (),
) -> list[PsMemory]:
    """Returns the memory of each parameter server.

    Args:
        held: All variables and shards.
        num_ps: Number of parameter servers.
        keeping: What they keep besides.
        message_bytes: Bytes of messages on their way, by parameter server;
            none counts as zero.
    """
    mine = [[each for each in held if each.ps == ps] for ps in range(num_ps)]
    sizes = [sum(each.num_bytes for each in own) for own in mine]
    result = []
    for ps, own in enumerate(mine):
        slots = sum(each.num_bytes for each in own if each.is_slot)
        marked = keeping.increments or keeping.standby
        rows = sum(
            each.num_rows for each in own if each.num_bytes >= _MARKED_BYTES
        )
        everywhere = sum(each.num_bytes for each in own if each.is_everywhere)
        result.append(
            PsMemory(
                variables=sizes[ps] - slots,
                slots=slots,
                checkpoint=sizes[ps] if keeping.checkpoints else 0,
                standby=sizes[ps - 1] if keeping.standby else 0,
                marks=rows * _BYTES_OF_A_MARK if marked else 0,
                # Of P shards, each of P + 1 has P / (P + 1).
                moving=everywhere * num_ps // (num_ps + 1)
                if keeping.moves
                else 0,
                messages=message_bytes[ps] if message_bytes else 0,
            )
        )
    return result
