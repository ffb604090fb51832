"""The evaluator beside the training: a process of its own.

    sidecar_evaluator   `tfps.SidecarEvaluator`: follow, load, evaluate, tell
    folder              what is in the folder that is followed; loads it
    checkpoint          what a checkpoint is, and what each kind has to answer
    keras_files         the kinds `.keras` and `.weights.h5`
    tensorflow_prefix   the kind of `tf.train.Checkpoint`: files of one prefix
    files               lists, dates and copies files, local and remote
    evaluation_data     what `model.evaluate` is given, again and again
    report              an evaluation, printed and as summaries
    export_best         `tfps.ExportBest`: keeps the best model so far
    running_job         is the job that is followed over?

These decide, without files, processes or clock:

    pending             which checkpoint is next, and when one is given up
    endings             when the evaluator ends
    silence             when nobody of the job answers any more

It never connects to the cluster. It reads files that the training writes, and
asks tasks whether they live.
"""
