"""What a parameter is, where it lives, and which rows are in which shard.

layout.py             pure: the contiguous row ranges of the shards of a table
partitioners.py       pure: into how many shards a variable is cut
placement.py          pure: which ps takes the next bytes
initialization.py     fills shards where they live, block by block
random_blocks.py      any block of rows of a random initializer's full value
stacked_initializer.py  initial values of tables that lie behind one another
late_bound.py         a variable whose handle is looked up at call time
handle_areas.py       handles that functions find on their ps
argument_type.py      a variable as an argument of a tf.function
inventory.py          what each ps holds, so that it can be made again
holdings.py           pure: what a ps holds, for people
remote_variable.py    a whole variable on one ps
sharded_variable.py   a table cut over several ps, one value to the user
tape_anchor.py        what a gradient tape watches in the place of shards
shard_reader.py       reads all shards of a table as one value
shard_writer.py       assigns all shards of a table from one value
apart.py              has checkpoints leave out what ps write themselves
saved_form.py         a table in TensorFlow's checkpoints and SavedModels
row_lookup.py         looks up rows of a variable, each distinct id once
present_rows.py       rows as the newest optimizer step has left them
joint_lookup.py       looks up rows of several tables, one exchange with a ps
graph_checks.py       checks of values known only when a function runs
row_gather.py         splits ids by shard, gathers rows where they are
shard_order.py        distinct ids in the order of the shards that hold them
distinct_rows.py      slices in which every id occurs once
segment_sums.py       sums of rows that belong together
repeated_rows.py      rows where they are asked for, each fetched once
dense_reads.py        warns of steps that move a whole sharded table
recovery_gate.py      where the chief waits while lost ps are brought back
chief_reads.py        reads that go on when the cluster changes under them
steps_in_flight.py    what the chief waits for before it looks at the model
vectorized_lookup.py  looks up rows in functions that are vectorized
views.py              lets unmodified optimizers see only rows, or one shard
wire.py               rounds what travels to fewer bits
row_codes.py          pure: rows of floats as one byte a number
gradient_residual.py  what rounding left off a gradient, kept for the next
tensor_protocol.py    what makes a container of shards a tf.Variable
scatter_methods.py    every scatter method of a tf.Variable
partitioned_rows.py   initializers that are asked for some rows alone
table_slices.py       slices of a table, read and assigned where rows live
variable_copies.py    copies of variables, by copy.deepcopy and pickle
worker_resident.py    one object per worker, rebuilt when the worker returns
worker_local_handle.py  a resource of which every worker or lane has its own
worker_local.py       metric states: one copy per lane, put together to read
per_worker_variable.py  a variable that each worker has for itself
worker_seeds.py       seed generators: every lane draws its own sequence
mirrored_scalar.py    step counter, learning rate: on a ps, read from copies
lane_tallies.py       how much every lane has added to a number
looked_up.py          which rows the function being traced has looked up
update_lock.py        lets one update of a variable at a time run on its ps
self_assignment.py    makes v.assign(f(v)) lose nothing
shard_assignment.py   the same for variables that are cut
self_computation.py   how a value was computed from a variable itself
states/               the rules of states that a step assigns
worker_tables.py      lookup tables: one copy per worker
late_captures.py      what functions capture of things that exist already
testing.py            variables on this process's own device, for tests
"""
