"""A training script of a workload, which `tfps plan` can rehearse.

python -m tfps_plugin plan integration_tests/benchmarks/planned.py dlrm26
"""

import importlib
import pathlib
import sys

import keras

import tfps_plugin as tfps

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

# By its full name: this file is run by its path.
workloads = importlib.import_module("integration_tests.benchmarks.workloads")
workload = workloads.WORKLOADS[sys.argv[1]]
strategy = tfps.ParameterServerStrategy(
    variable_partitioner=tfps.partitioners.MinSizePartitioner(
        workload.min_shard_bytes, max_shards=2
    )
)
with strategy.scope():
    model = workload.model(keras, None)
model.fit(tfps.DatasetCreator(workload.dataset), steps_per_epoch=100)
