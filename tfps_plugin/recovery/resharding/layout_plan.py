"""Layout of variables for another number of parameter servers. Pure.

A family is a variable with everything that has to stay on its parameter
servers, such as its slots.
"""

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from tfps_plugin.variables.sharding.layout import RowLayout

# Families are moved for balance only while that lowers the fullest parameter
# server by more than this share of the mean.
_LEAST_GAIN = 0.01


@dataclasses.dataclass(frozen=True)
class Family:
    """Place of a family.

    Attributes:
        num_bytes: Bytes of all its variables together.
        layout: Rows of each shard; a variable that is not sharded has one
            shard, whatever its shape.
        servers: Index of the parameter server of each shard.
        is_sharded: Whether it may have another number of shards.
        is_fixed: Whether it stays where it is as long as that parameter server
            does.
        rows_per_block: Rows that stay together in one shard.
    """

    num_bytes: int
    layout: RowLayout
    servers: tuple[int, ...]
    is_sharded: bool = False
    is_fixed: bool = False
    rows_per_block: int = 1

    def bytes_of_shards(self) -> list[int]:
        """Returns the bytes of each shard."""
        rows = max(1, self.layout.num_rows)
        return [
            self.num_bytes * len(self.layout.rows(shard)) // rows
            for shard in range(self.layout.num_shards)
        ]


def bytes_per_server(
    families: Sequence[Family], servers: Collection[int]
) -> dict[int, int]:
    """Returns the bytes on each parameter server."""
    held = dict.fromkeys(sorted(servers), 0)
    for family in families:
        for server, num_bytes in zip(
            family.servers, family.bytes_of_shards(), strict=True
        ):
            if server in held:
                held[server] += num_bytes
    return held


def plan(
    families: Sequence[Family],
    before: Collection[int],
    after: Collection[int],
) -> list[Family]:
    """Returns the place of each family on other parameter servers.

    - A table with shards on every parameter server has shards on every one
      afterwards, as many on each as before, of about as many rows each.
    - Any other table keeps its number of shards.
    - What is on a parameter server that leaves goes to the one with the fewest
      bytes; what the program has placed there by hand, to one together.
    - Then families go from the fullest parameter server to the emptiest, as
      long as this pays. Those that the program has placed by hand stay.

    Args:
        families: The families.
        before: Indices of the parameter servers that they are on.
        after: Indices of the parameter servers that there will be.

    Returns:
        The families in the same order, each as it will be.
    """
    planned = list(families)
    moving = [
        number
        for number, family in enumerate(families)
        if not _may_stay(family, before, after)
    ]
    staying = set(range(len(families))) - set(moving)
    held = bytes_per_server([families[number] for number in staying], after)
    refuges: dict[int, int] = {}
    # The largest first: the smaller ones even out what they leave.
    for number in sorted(moving, key=lambda i: -families[i].num_bytes):
        planned[number] = _placed(families[number], before, held, refuges)
    return _balanced(planned, held)


def _may_stay(
    family: Family, before: Collection[int], after: Collection[int]
) -> bool:
    """Returns whether a family may stay as it is."""
    is_everywhere = family.is_sharded and set(family.servers) >= set(before)
    if is_everywhere and set(before) != set(after):
        return False
    return set(family.servers) <= set(after)


def _placed(
    family: Family,
    before: Collection[int],
    held: dict[int, int],
    refuges: dict[int, int],
) -> Family:
    """Returns a family on other parameter servers, and counts its bytes.

    Args:
        family: The family as it is.
        before: The parameter servers that there have been.
        held: Bytes on each parameter server that there will be.
        refuges: For each parameter server that leaves, the one that takes what
            the program has placed there by hand.
    """
    layout = family.layout
    if family.is_sharded and set(family.servers) >= set(before):
        num_shards = round(layout.num_shards * len(held) / len(before))
        if len(before) == 1:
            # It may have been cut for more of them.
            num_shards = max(layout.num_shards, len(held))
        num_blocks = layout.num_rows // family.rows_per_block
        num_shards = max(1, min(num_shards, num_blocks))
        layout = RowLayout.even(
            layout.num_rows, num_shards, family.rows_per_block
        )
    placed = dataclasses.replace(
        family, layout=layout, servers=(0,) * layout.num_shards
    )
    servers = []
    pieces = dict.fromkeys(held, 0)
    for shard, num_bytes in enumerate(placed.bytes_of_shards()):
        stays_on = _rows_by_server(family, layout.rows(shard))
        if family.is_fixed and family.servers[0] in refuges:
            server = refuges[family.servers[0]]
        else:
            server = min(
                held,
                key=lambda ps: (
                    pieces[ps],
                    -stays_on.get(ps, 0),
                    held[ps],
                    ps,
                ),
            )
        if family.is_fixed:
            refuges[family.servers[0]] = server
        pieces[server] += 1
        held[server] += num_bytes
        servers.append(server)
    return dataclasses.replace(placed, servers=tuple(servers))


def _rows_by_server(family: Family, rows: range) -> Mapping[int, int]:
    """Returns how many of some rows each parameter server has now."""
    found: dict[int, int] = {}
    for shard, part in family.layout.overlaps(rows.start, rows.stop):
        server = family.servers[shard]
        found[server] = found.get(server, 0) + len(part)
    return found


def _balanced(families: list[Family], held: dict[int, int]) -> list[Family]:
    """Returns families moved from full parameter servers to empty ones."""
    families = list(families)
    mean = sum(held.values()) / len(held)
    # Each move lowers the sum of squares, so this ends; the bound is for pure
    # prudence.
    for _ in range(len(families) * len(held)):
        fullest = max(held, key=lambda ps: (held[ps], -ps))
        emptiest = min(held, key=lambda ps: (held[ps], ps))
        gap = held[fullest] - held[emptiest]
        best: tuple[int, int, int] | None = None
        for number, family in enumerate(families):
            if family.is_fixed or emptiest in family.servers:
                continue
            for shard, num_bytes in enumerate(family.bytes_of_shards()):
                if family.servers[shard] != fullest or num_bytes >= gap:
                    continue
                # Half of the gap would even both out.
                gain = min(num_bytes, gap - num_bytes)
                if gain > mean * _LEAST_GAIN and (
                    best is None or gain > best[0]
                ):
                    best = gain, number, shard
        if best is None:
            break
        _, number, shard = best
        family = families[number]
        num_bytes = family.bytes_of_shards()[shard]
        servers = list(family.servers)
        servers[shard] = emptiest
        families[number] = dataclasses.replace(family, servers=tuple(servers))
        held[fullest] -= num_bytes
        held[emptiest] += num_bytes
    return families
