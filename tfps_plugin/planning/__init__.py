"""Plans of a job: memory, messages and speed before it runs.

planner         makes the plan of a training script
rehearsal       runs the script until its first `fit`
cut_step        cuts the step where tensors travel
dry_step        runs the worker's part of the step, without any tables
step_messages   messages of a step, by parameter server (pure)
work            work of one step, for each task (pure)
machines        the cluster that a plan is for (pure)
costs           costs of the runtime (pure)
memory          memory of each parameter server (pure)
rates           steps per second, and what bounds them (pure)
advice          what to change (pure)
plan            all of that together (pure)
tables          a plan for a terminal
"""
