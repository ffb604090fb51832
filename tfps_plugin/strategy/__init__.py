"""The tf.distribute face: scope, run, reduce, variables, updates on the ps.

parameter_server_strategy.py  `tfps.ParameterServerStrategy`, what users hold
consistency.py                `tfps.Async`, `tfps.Sync`, `tfps.BoundedStaleness`
options.py                    its options in groups, checked when created
monitoring_options.py         those for watching a job
deprecated_options.py         the keywords that these options were before
chief_cluster.py              the cluster of a strategy, as its chief finds it
explanations.py               explains what steps send between tasks
extended.py                   what TensorFlow and Keras call behind it
variable_creation.py          creates each new variable as the kind it has to be
placement/                    what `tf.device` and `tfps.on_ps` name
ps_variables.py               places variables on the ps, with lock and value
chief_runs.py                 warns of steps that leave the workers idle
replicas/                     the context of a step, and results of workers
legacy_keras.py               refuses variables of tf_keras, which is Keras 2
update_parts.py               cuts an update into what runs on each ps
updates.py                    runs an optimizer's update on the ps, locked
"""
