"""A state of a job, for tests of what shows states."""

from tfps_plugin.monitoring.state import cluster_state
from tfps_plugin.monitoring.state.cluster_state import CheckpointState
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.cluster_state import EventState
from tfps_plugin.monitoring.state.cluster_state import JobState
from tfps_plugin.monitoring.state.cluster_state import ParameterServerState
from tfps_plugin.monitoring.state.cluster_state import TableState
from tfps_plugin.monitoring.state.cluster_state import TaskState
from tfps_plugin.monitoring.state.cluster_state import WorkerState


def example_state() -> ClusterState:
    """Returns the state of a job with a lost worker."""
    return ClusterState(
        time=1_700_000_100.0,
        version="1.2.3",
        program="train.py",
        consistency="Async()",
        chief=TaskState(
            job="chief",
            index=0,
            address="10.0.0.1:2222",
            health=cluster_state.HEALTHY,
            host="node-1",
            process_id=4711,
            uptime_seconds=3723.0,
            processors=0.25,
            memory_bytes=800_000_000,
        ),
        workers=(
            WorkerState(
                job="worker",
                index=0,
                address="10.0.0.2:2222",
                health=cluster_state.HEALTHY,
                host="node-2",
                process_id=12,
                uptime_seconds=3700.0,
                processors=1.75,
                memory_bytes=1_500_000_000,
                memory_limit_bytes=8_000_000_000,
                received_bytes_per_second=2e6,
                sent_bytes_per_second=1e6,
                work="fit of ranking",
                steps_per_second=120.5,
                seconds_per_step=0.0083,
                input_share=0.1,
                compute_share=0.7,
                wait_share=0.2,
                closures_in_flight=1,
                staleness=1.5,
            ),
            WorkerState(
                job="worker",
                index=1,
                address="10.0.0.3:2222",
                health=cluster_state.LOST,
                detail="Connection refused",
                num_restarts=2,
                num_retries=3,
            ),
        ),
        parameter_servers=(
            ParameterServerState(
                job="ps",
                index=0,
                address="10.0.0.4:2222",
                health=cluster_state.HEALTHY,
                uptime_seconds=3700.0,
                memory_bytes=12_000_000_000,
                memory_limit_bytes=16_000_000_000,
                received_bytes_per_second=3e6,
                sent_bytes_per_second=4e6,
                num_bytes=9_600_000_000,
                num_rows=50_000_000,
                num_variables=30,
                updates_per_second=120.5,
                tables=(
                    TableState(
                        name="ranking/user/embeddings",
                        num_rows=50_000_000,
                        num_bytes=3_200_000_000,
                        rows_per_second=61_000.0,
                    ),
                ),
            ),
        ),
        job=JobState(
            work="fit of ranking",
            is_running=True,
            epoch=3,
            num_epochs=10,
            step=4200,
            steps_per_epoch=10_000,
            total_steps=24_200,
            metrics={"loss": 0.4321, "auc": 0.771},
            steps_per_second=120.5,
            examples_per_second=61_696.0,
            running_seconds=3600.0,
        ),
        last_checkpoint=CheckpointState(
            path="/checkpoints/ckpt-2",
            written_at=1_700_000_000.0,
            seconds=4.2,
        ),
        events=(
            EventState(
                time=1_700_000_090.0,
                kind="WorkerLost",
                level="WARNING",
                text="Worker 1 at 10.0.0.3:2222 is lost: Connection refused.",
            ),
        ),
        counters={"steps_done": 24_200, "workers_lost": 3},
        gathered_in_seconds=0.01,
    )
