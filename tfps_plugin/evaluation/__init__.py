"""Sidecar evaluation: a process that evaluates checkpoints beside the training.

    sidecar_evaluator   `tfps.SidecarEvaluator`: the loop that evaluates
    arguments           checks of its arguments; the data of `model.evaluate`
    folder              the checkpoints of the followed folder; loads them
    checkpoint          pure: one checkpoint, and the protocol of its kind
    keras_files         the kinds `.keras` and `.weights.h5`
    tensorflow_prefix   the kind of `tf.train.Checkpoint`: files of one prefix
    files               lists, stats and copies files, local and remote
    report              an evaluation, as text and as summaries
    export_best         `tfps.ExportBest`: keeps the best model so far
    running_job         observes whether the followed job is over
    pending             pure: selects the next checkpoint, gives up on some
    endings             pure: decides when the evaluator ends

The evaluator never connects to the cluster. It reads files that the training
writes, and probes tasks to see whether they are alive.
"""
