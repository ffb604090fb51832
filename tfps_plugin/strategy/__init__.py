"""The tf.distribute face: scope, run, reduce, variables, updates on the ps.

parameter_server_strategy.py  `tfps.ParameterServerStrategy`, what users hold
extended.py                   what TensorFlow and Keras call behind it
variable_creation.py          where a new variable goes, and in what shape
chief_runs.py                 tells of steps that leave the workers idle
legacy_keras.py               refuses variables of tf_keras, which is Keras 2
update_parts.py               cuts an update into what runs on each ps
updates.py                    runs an optimizer's update on the ps, locked
"""
