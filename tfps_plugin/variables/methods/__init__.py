"""The methods of a `tf.Variable`, for all kinds.

tensor_protocol.py   what makes a container of shards a tf.Variable
scatter_methods.py   every scatter method of a tf.Variable
table_slices.py      slices of a table, read and assigned where rows live
shard_assignment.py  the same for variables that are cut
self_assignment.py   makes v.assign(f(v)) lose nothing
self_computation.py  how a value was computed from a variable itself
argument_type.py     a variable as an argument of a tf.function
variable_copies.py   copies of variables, by copy.deepcopy and pickle
"""
