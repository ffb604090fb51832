"""Manifests: a job described for those who start its tasks on a cluster.

    job             the job: its tasks, their sizes, what they run
    quantities      amounts of memory and of cores, as Kubernetes writes them
    addresses       the addresses of tasks, and their `TF_CONFIG`
    pods            the pod of a task, for everything that runs on Kubernetes
    indexed_jobs    a Kubernetes Job for all tasks of a kind
    network_policy  a network policy that lets only the job's own pods in
    jobset          a JobSet
    tfjob           a TFJob of Kubeflow's Training Operator
    plain           Jobs and a headless Service
    compose         a Compose file
    slurm           a batch script for sbatch
    formats         all of these by name, and the YAML
    testing         jobs for tests

All of it is pure: a job in, text out. Nothing is asked of a cluster.
"""
