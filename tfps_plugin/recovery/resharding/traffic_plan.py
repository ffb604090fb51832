"""Places of variables by how much is read and written there. Pure.

Every shard goes to the parameter server with the least traffic that has room
for it. Shards that cause the most go first.
"""

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence
from typing import NamedTuple

from tfps_plugin.recovery.resharding.layout_plan import Family

# No parameter server may hold more than this, as a part of the mean.
_MOST_BYTES = 1.25
# A shard stays where it is unless there is more traffic than this, as a part of
# the mean.
_ENOUGH = 1.02


class _Piece(NamedTuple):
    traffic: float
    num_bytes: int
    family: int
    shard: int


def plan(
    families: Sequence[Family],
    traffic: Sequence[Sequence[float]],
    servers: Collection[int],
) -> list[Family]:
    """Returns the place of each family by its traffic.

    Layouts stay. So do families that the program has placed by hand.

    Args:
        families: The families, as they are.
        traffic: Bytes that each shard of each family sends and gets in a step.
        servers: Indices of the parameter servers.

    Returns:
        The families in the same order, each as it will be.
    """
    load = dict.fromkeys(sorted(servers), 0.0)
    held = dict.fromkeys(sorted(servers), 0)
    places = [list(family.servers) for family in families]
    pieces = []
    for number, family in enumerate(families):
        for shard, num_bytes in enumerate(family.bytes_of_shards()):
            piece = _Piece(traffic[number][shard], num_bytes, number, shard)
            if family.is_fixed:
                load[family.servers[shard]] += piece.traffic
                held[family.servers[shard]] += num_bytes
            else:
                pieces.append(piece)
    mean_load = sum(map(sum, traffic)) / len(load)
    most_bytes = _MOST_BYTES * sum(f.num_bytes for f in families) / len(held)
    # By place among equals: the same plan each time.
    pieces.sort(key=lambda p: (-p.traffic, -p.num_bytes, p.family, p.shard))
    taken: dict[int, set[int]] = {}
    for piece in pieces:
        own = taken.setdefault(piece.family, set())
        has_room = [s for s in held if held[s] + piece.num_bytes <= most_bytes]
        candidates = has_room or [min(held, key=held.__getitem__)]
        idle = [
            s
            for s in candidates
            if load[s] + piece.traffic <= _ENOUGH * mean_load
        ]
        # Shards of a table on different ones share the work of reading it.
        apart = [s for s in idle if s not in own]
        server = families[piece.family].servers[piece.shard]
        if server not in (apart or idle):
            server = min(
                apart or idle or candidates,
                key=lambda s: (load[s], held[s], s),
            )
        own.add(server)
        load[server] += piece.traffic
        held[server] += piece.num_bytes
        places[piece.family][piece.shard] = server
    return [
        dataclasses.replace(family, servers=tuple(own_places))
        for family, own_places in zip(families, places, strict=True)
    ]


def hottest_share(
    families: Sequence[Family], traffic: Sequence[Sequence[float]]
) -> float:
    """Returns the share of all traffic that the busiest ps has; 0 without any.

    Args:
        families: The families.
        traffic: See `plan`.
    """
    load: dict[int, float] = {}
    for family, own in zip(families, traffic, strict=True):
        for server, amount in zip(family.servers, own, strict=True):
            load[server] = load.get(server, 0.0) + amount
    total = sum(load.values())
    return max(load.values()) / total if total else 0.0
