"""The methods of a `tf.Variable`, for all kinds.

tensor_protocol.py   the interface of a tf.Variable, for containers of shards
assign_methods.py    every assign method of a tf.Variable
scatter_methods.py   every scatter method of a tf.Variable
resource_changes.py  changes of a resource while workers run steps
table_slices.py      slices of a table, read and assigned where rows live
self_assignment.py   makes v.assign(f(v)) lose nothing
self_computation.py  finds computations on a variable's own value
argument_type.py     a variable as an argument of a tf.function
variable_copies.py   copies of variables, by copy.deepcopy and pickle
"""
