"""TorchRec as a peer: the same tables and dense layers, in PyTorch.

TorchRec has no parameter servers. Each of two processes holds a part of the
tables and trains on batches of its own; they exchange ids, rows and gradients
by gloo, and take every step together. The tables' update is fused into the
backward pass. As for the other contestants, a step is one batch of one process.

It needs the packages of the extra `torchrec`. On a machine without a GPU, the
operations for GPUs that it brings do not load, and those for CPUs take their
place:

    pip install -e '.[benchmarks,torchrec]'
    pip install --no-deps --force-reinstall 'fbgemm-gpu-cpu==1.9.*'

A process that trains imports no TensorFlow:

    python -m integration_tests.benchmarks.torchrec_peer RANK FOLDER

reads its batches from the folder, and then numbers of steps from its input.
"""

import contextlib
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

NUM_PROCESSES = 2
_NUM_BATCHES = 16
_TABLES, _ROWS, _WIDTH = 26, 20_000, 16
_LAYERS = (_TABLES * _WIDTH, 256, 128)
_LEARNING_RATE = 0.05
_FEATURES = [f"ids_{number}" for number in range(_TABLES)]
DONE = "done"


@contextlib.contextmanager
def torchrec(workload: Any, steps_per_call: int | None) -> Iterator[Any]:
    """Yields a model on TorchRec, with two processes, and None for the data.

    Args:
        workload: `dlrm26`, one of `workloads.WORKLOADS`.
        steps_per_call: Ignored: PyTorch has no calls of several steps.
    """
    del steps_per_call
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for rank in range(NUM_PROCESSES):
            ids, labels = workload.rows(
                np.random.default_rng(1000 + rank),
                _NUM_BATCHES * workload.batch,
            )
            np.savez(
                folder / f"{rank}.npz",
                ids=np.split(ids, _NUM_BATCHES),
                labels=np.split(labels, _NUM_BATCHES),
            )
        with contextlib.ExitStack() as stack:
            yield Processes(__spec__.name, [str(folder)], stack), None


class Processes:
    """The processes that train together, used like a Keras model."""

    def __init__(
        self, module: str, arguments: list[str], stack: contextlib.ExitStack
    ) -> None:
        """Starts them.

        Args:
            module: Program of a process. It gets its rank as its first
                argument, reads numbers of steps from its input, and prints
                `DONE` after each of them.
            arguments: Further arguments.
            stack: Ends the processes.
        """
        self._processes = []
        for rank in range(NUM_PROCESSES):
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(rank), *arguments],
                # As torchrun sets it, unless the user does.
                env={"OMP_NUM_THREADS": "1", **os.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            self._processes.append(process)

    def fit(self, data: None, *, steps_per_epoch: int, **_: Any) -> None:
        """Trains; ignores other arguments of `fit`.

        Args:
            data: Ignored: the processes have their batches.
            steps_per_epoch: Number of batches, of both processes together.
        """
        del data
        each = -(-steps_per_epoch // NUM_PROCESSES)
        for process in self._processes:
            if process.stdin is None:
                raise RuntimeError("The process cannot be told anything.")
            process.stdin.write(f"{each}\n")
            process.stdin.flush()
        for process in self._processes:
            # PyTorch's libraries print, too.
            for line in process.stdout or ():
                if line.strip() == DONE:
                    break
            else:
                raise RuntimeError(
                    "A process of TorchRec has ended. Received: "
                    f"{process.args!r}. Is the extra `torchrec` installed?"
                )


def _model() -> Any:
    """Returns the model, with its tables distributed over the processes."""
    import torch
    import torchrec as rec
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = rec.EmbeddingBagCollection(
                [
                    rec.EmbeddingBagConfig(
                        name=f"table_of_{feature}",
                        embedding_dim=_WIDTH,
                        num_embeddings=_ROWS,
                        feature_names=[feature],
                    )
                    for feature in _FEATURES
                ],
                device=torch.device("meta"),
            )
            layers: list[torch.nn.Module] = []
            for inputs, outputs in itertools.pairwise(_LAYERS):
                layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
            self.dense = torch.nn.Sequential(
                *layers, torch.nn.Linear(_LAYERS[-1], 1)
            )

        def forward(self, ids: Any) -> Any:
            return self.dense(self.tables(ids).values())

    return DistributedModelParallel(
        Model(),
        device=torch.device("cpu"),
        sharders=[
            EmbeddingBagCollectionSharder(
                fused_params={
                    "optimizer": EmbOptimType.EXACT_ADAGRAD,
                    "learning_rate": _LEARNING_RATE,
                }
            )
        ],
    )


def _batches(folder: pathlib.Path, rank: int) -> list[tuple[Any, Any]]:
    """Returns the batches of one process: ids and labels."""
    import torch
    import torchrec as rec

    with np.load(folder / f"{rank}.npz") as arrays:
        return [
            (
                rec.KeyedJaggedTensor.from_lengths_sync(
                    _FEATURES,
                    torch.from_numpy(ids.T.reshape(-1)),
                    torch.ones(ids.size, dtype=torch.int64),
                ),
                torch.from_numpy(labels),
            )
            for ids, labels in zip(arrays["ids"], arrays["labels"], strict=True)
        ]


def main() -> None:
    """Trains as often as it is told, until the end of input."""
    import torch

    rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(NUM_PROCESSES))
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=NUM_PROCESSES,
    )
    model = _model()
    # The tables' optimizer is part of their backward pass.
    optimizer = torch.optim.Adagrad(
        [p for name, p in model.named_parameters() if "dense" in name],
        lr=_LEARNING_RATE,
    )
    loss = torch.nn.BCEWithLogitsLoss()
    batches = itertools.cycle(_batches(folder, rank))
    for line in sys.stdin:
        for ids, labels in itertools.islice(batches, int(line)):
            optimizer.zero_grad()
            loss(model(ids), labels).backward()
            optimizer.step()
        print(DONE, flush=True)


if __name__ == "__main__":
    main()
