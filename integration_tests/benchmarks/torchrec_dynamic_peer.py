"""TorchRec's tables with managed collisions, as a peer of dynamic tables.

Each of two processes holds half of the rows and half of the ids that have
rows, and trains on batches of its own; they take every step together. Every
hundred steps of a process, ids get rows and others lose them, and the
optimizer is fused into the backward pass. TorchRec's newer table, with a hash
that has no collisions, does not train on CPUs in the release 1.9.

It needs what `torchrec_peer` needs. A process that trains:

    python -m integration_tests.benchmarks.torchrec_dynamic_peer RANK FOLDER \\
        ROWS WIDTH BATCH IDS

reads numbers of steps from its input.
"""

import contextlib
import itertools
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from .torchrec_peer import DONE
from .torchrec_peer import NUM_PROCESSES
from .torchrec_peer import Processes

_LEARNING_RATE = 0.01
_STEPS_BETWEEN_CHANGES = 100
_NUM_BATCHES = 200
_TABLE, _FEATURE = "rows_of_ids", "ids"


@contextlib.contextmanager
def torchrec(num_rows: int, width: int, batch: int, ids: int) -> Iterator[Any]:
    """Yields what trains on TorchRec, in two processes.

    Args:
        num_rows: Rows of the table, and number of different ids.
        width: Numbers in a row.
        batch: Examples in the batch of a process.
        ids: Ids of an example.
    """
    shape = [str(number) for number in (num_rows, width, batch, ids)]
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        yield Processes(__spec__.name, [folder, *shape], stack)


def _model(num_rows: int, width: int, batch: int, ids: int) -> Any:
    """Returns the model, with its table distributed over the processes."""
    import torch
    import torchrec as rec
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.mc_embedding import (
        ManagedCollisionEmbeddingCollectionSharder,
    )
    from torchrec.distributed.mc_modules import (
        ManagedCollisionCollectionSharder,
    )
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner import Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.modules import mc_modules
    from torchrec.modules.mc_embedding_modules import (
        ManagedCollisionEmbeddingCollection,
    )

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rows = rec.EmbeddingCollection(
                tables=[
                    rec.EmbeddingConfig(
                        name=_TABLE,
                        embedding_dim=width,
                        num_embeddings=num_rows,
                        feature_names=[_FEATURE],
                    )
                ],
                device=torch.device("meta"),
            )
            managed = mc_modules.MCHManagedCollisionModule(
                zch_size=num_rows,
                device=torch.device("cpu"),
                eviction_policy=mc_modules.DistanceLFU_EvictionPolicy(),
                eviction_interval=_STEPS_BETWEEN_CHANGES,
                input_hash_size=2**62,
                buckets=NUM_PROCESSES,
            )
            self.table = ManagedCollisionEmbeddingCollection(
                rows,
                mc_modules.ManagedCollisionCollection(
                    managed_collision_modules={_TABLE: managed},
                    embedding_configs=rows.embedding_configs(),
                ),
                return_remapped_features=False,
            )
            self.dense = torch.nn.Linear(ids * width, 1)

        def forward(self, features: Any) -> Any:
            found = self.table(features)
            rows = found[0] if isinstance(found, tuple) else found
            return self.dense(
                rows[_FEATURE].values().reshape(batch, ids * width)
            )

    sharder = ManagedCollisionEmbeddingCollectionSharder(
        EmbeddingCollectionSharder(
            fused_params={
                "optimizer": EmbOptimType.EXACT_ADAGRAD,
                "learning_rate": _LEARNING_RATE,
            }
        ),
        ManagedCollisionCollectionSharder(),
    )
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=NUM_PROCESSES, compute_device="cpu"),
        constraints={
            _TABLE: ParameterConstraints(
                sharding_types=["row_wise"], compute_kernels=["fused"]
            )
        },
    )
    model = Model()
    plan = planner.collective_plan(
        model, [sharder], torch.distributed.group.WORLD
    )
    return DistributedModelParallel(
        model, device=torch.device("cpu"), sharders=[sharder], plan=plan
    )


def _batches(
    rank: int, num_rows: int, batch: int, ids: int
) -> Iterator[tuple[Any, Any]]:
    """Yields the batches of one process again and again."""
    import torch
    import torchrec as rec

    random = np.random.default_rng(rank)
    batches = []
    for _ in range(_NUM_BATCHES):
        numbers = torch.from_numpy(
            random.integers(0, num_rows, (batch, ids), np.int64)
        )
        features = rec.KeyedJaggedTensor.from_lengths_sync(
            [_FEATURE],
            numbers.reshape(-1),
            torch.full((batch,), ids, dtype=torch.int64),
        )
        batches.append((features, (numbers[:, :1] % 2).float()))
    return itertools.cycle(batches)


def main() -> None:
    """Trains as often as it is told, until the end of input."""
    import torch

    rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    num_rows, width, batch, ids = map(int, sys.argv[3:7])
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(NUM_PROCESSES))
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=NUM_PROCESSES,
    )
    model = _model(num_rows, width, batch, ids)
    # The table's optimizer is part of its backward pass.
    optimizer = torch.optim.Adagrad(
        [p for name, p in model.named_parameters() if "dense" in name],
        lr=_LEARNING_RATE,
    )
    batches = _batches(rank, num_rows, batch, ids)
    for line in sys.stdin:
        for features, targets in itertools.islice(batches, int(line)):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
        print(DONE, flush=True)


if __name__ == "__main__":
    main()
