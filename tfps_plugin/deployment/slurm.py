"""A batch script for `sbatch`: a heterogeneous job, a part for each kind."""

import shlex
from collections.abc import Sequence

from tfps_plugin.cluster.serving.chief_watch import EXIT_NO_CHIEF
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.deployment import quantities
from tfps_plugin.deployment.job import SERVING
from tfps_plugin.deployment.job import DeployedJob
from tfps_plugin.deployment.job import TaskGroup

# Where ports begin is chosen by the number of the job, so that jobs on one node
# do not meet: above those of well-known services, below those that Linux gives
# to outgoing connections (from 32768).
_FIRST_PORT = 20_000
_NUM_PORTS = 10_000
_MOST_TASKS = 32_768 - _FIRST_PORT - _NUM_PORTS
_LAST_PORT = 65_535
# Before the time limit: enough to be put back into the queue.
_WARNING_SECONDS = 120

_HEAD = """\
#!/bin/bash
# Made by `tfps manifest`. Submit it with sbatch, from a folder that all nodes
# see.
"""

_ADDRESSES = """
set -u

# The host of each task of a part of the job, in the order of the tasks.
nodes() {
  srun --het-group="$1" bash -c 'echo "$SLURM_PROCID $(hostname)"' |
    sort -n | cut -d ' ' -f 2
}

# The addresses of tasks on these hosts, as a list of JSON. Each has its port.
addresses() {
  local port=$1 separator= node
  shift
  for node in "$@"; do
    printf '%s"%s:%d"' "$separator" "$node" "$port"
    separator=', '
    port=$((port + 1))
  done
}
"""

_CLUSTER = """
chief_node=$(nodes 0)
ps_nodes=$(nodes 1)
worker_nodes=$(nodes 2)
if [[ $(wc -w <<<"$chief_node $ps_nodes $worker_nodes") -ne {num_tasks} ]]; then
  echo "The nodes of the {num_tasks} tasks are not known: srun has failed." >&2
  exit 1
fi
export TFPS_CLUSTER="{{\\
\\"chief\\": [$(addresses $((port)) $chief_node)], \\
\\"ps\\": [$(addresses $((port + 1)) $ps_nodes)], \\
\\"worker\\": [$(addresses $((port + 1 + {num_ps})) $worker_nodes)]}}"
"""

_RUN = """
# Runs a task, and again after a failure, unless it says that there is no chief.
export TFPS_TASK='
for ((run = 0; run <= {max_restarts}; run++)); do
  export TF_CONFIG="{{\\"cluster\\": $TFPS_CLUSTER,\\
 \\"task\\": {{\\"type\\": \\"$TFPS_KIND\\", \\"index\\": $SLURM_PROCID}}}}"
  "$@" && exit
  code=$?
  [[ $code -ge $TFPS_RESTART_FROM && $code -ne {no_chief} ]] || exit $code
  echo "$TFPS_KIND $SLURM_PROCID ended with exit code $code." >&2
  sleep 1
done
exit $code'

# Arguments: a part of the job, the kind of its tasks, the lowest exit code
# after which they are started again, and their command.
tasks() {{
  local part=$1 kind=$2 restart_from=$3
  shift 3
  TFPS_KIND=$kind TFPS_RESTART_FROM=$restart_from exec srun \\
    --het-group="$part" --kill-on-bad-exit=0 --label \\
    bash -c "$TFPS_TASK" bash "$@"
}}

# Before the time limit, the job goes back into the queue.
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1

"""

_END = """
# A signal ends a wait, but not the chief.
while kill -0 "$chief" 2>/dev/null; do
  wait "$chief"
done
wait "$chief"
code=$?
if [[ $code -ne 0 ]]; then
  # Nobody is left to tell the other tasks that the job is over.
  kill $others 2>/dev/null
fi
wait
exit "$code"
"""


def script(job: DeployedJob, sbatch: Sequence[str] = ()) -> str:
    """Returns the batch script of a job.

    Args:
        job: The job.
        sbatch: Options of `sbatch` that each part of the job gets, such as
            `"--partition=gpu"`.

    Returns:
        A script of bash.

    Raises:
        ValueError: If the job has what Slurm does not, or an option is none.
    """
    _check(job, sbatch)
    num_tasks = sum(group.count for group in job.groups)
    lines = [_HEAD]
    for part, group in enumerate(job.groups):
        if part:
            lines.append("#SBATCH hetjob\n")
        lines += (
            f"#SBATCH {option}\n"
            for option in (
                *(_job_options(job) if part == 0 else ()),
                *_part_options(group),
                *sbatch,
            )
        )
    lines.append(_ADDRESSES)
    lines.append("\n# Tasks on one node, and jobs, have other ports.\n")
    lines.append(
        f"port=$(({_FIRST_PORT} + SLURM_JOB_ID * {num_tasks} % {_NUM_PORTS}))\n"
        if job.port is None
        else f"port={job.port}\n"
    )
    lines.append(
        _CLUSTER.format(
            num_tasks=num_tasks - job.count(EVALUATOR),
            num_ps=job.count("ps"),
        )
    )
    if job.environment:
        lines.append("\n")
    lines += (
        f"export {name}={shlex.quote(value)}\n"
        for name, value in job.environment
    )
    lines.append("export PYTHONUNBUFFERED=1\n")
    lines.append(
        _RUN.format(max_restarts=job.max_restarts, no_chief=EXIT_NO_CHIEF)
    )
    lines.append("others=\n")
    # The chief comes last: the others then serve while it reads its data.
    parts = sorted(
        enumerate(job.groups), key=lambda each: each[1].kind == CHIEF
    )
    for part, group in parts:
        lines.append(_start(job, part, group))
    lines.append(_END)
    return "".join(lines)


def _check(job: DeployedJob, sbatch: Sequence[str]) -> None:
    for option, value in (
        ("--image", job.image),
        ("--namespace", job.namespace),
        ("--checkpoint-claim", job.checkpoint_claim),
        ("--max-job-restarts", job.max_job_restarts or None),
    ):
        if value is not None:
            raise ValueError(
                f"{option} is not for --format slurm: tasks run on nodes that "
                "share their files, in the environment that sbatch is called "
                f"in. Received: {option} {value}"
            )
    num_tasks = sum(group.count for group in job.groups)
    if num_tasks > _MOST_TASKS:
        raise ValueError(
            f"A job has at most {_MOST_TASKS} tasks with --format slurm, "
            f"because each has a port. Received: {num_tasks} tasks"
        )
    last_port = (job.port or 0) + num_tasks - 1
    if last_port > _LAST_PORT:
        raise ValueError(
            "With --format slurm, each task has the port after that of the "
            f"one before: --port may be up to {_LAST_PORT - num_tasks + 1} "
            f"for {num_tasks} tasks. Received: --port {job.port}"
        )
    for each in sbatch:
        if not each.startswith("-") or "\n" in each:
            raise ValueError(
                "--sbatch expects an option of sbatch, such as "
                f"--sbatch=--partition=gpu. Received: {each!r}"
            )


def _job_options(job: DeployedJob) -> list[str]:
    return [
        f"--job-name={job.name}",
        "--output=%x-%j.log",
        # When the job begins again, its log goes on.
        "--open-mode=append",
        # After the failure of a node, and when its time is up.
        "--requeue",
        f"--signal=B:USR1@{_WARNING_SECONDS}",
    ]


def _part_options(group: TaskGroup) -> list[str]:
    cores = quantities.whole_cores(group.resources.millicores)
    mebibytes = quantities.whole_mebibytes(group.resources.memory_bytes)
    return [
        f"--ntasks={group.count}",
        f"--cpus-per-task={cores}",
        f"--mem-per-cpu={-(-mebibytes // cores)}M",
        *(
            [f"--gpus-per-task={group.resources.gpus}"]
            if group.resources.gpus
            else []
        ),
    ]


def _start(job: DeployedJob, part: int, group: TaskGroup) -> str:
    # The script is started again if it was killed; if it raises, it would
    # raise again.
    restart_from = 1 if group.kind in (*SERVING, EVALUATOR) else 128
    command = shlex.join(job.command(group.kind))
    last = "chief=$!" if group.kind == CHIEF else 'others+=" $!"'
    return f"tasks {part} {group.kind} {restart_from} {command} &\n{last}\n"
