"""The table of patches: every attribute of other packages that is replaced.

Neither Keras nor TensorFlow has a hook at these places. For models, variables
and functions of others, each replacement does what the original does.
`docs/patches.md` shows the same table, and `patches.py` explains its columns.
"""

from tfps_plugin._compat.patches import ANY_PARAMETERS
from tfps_plugin._compat.patches import Patch

_CONTEXT = "tensorflow.python.eager.context:Context"
_VARIABLE = "keras.src.backend.tensorflow.core:Variable"
_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"
_OPTIMIZER = "keras.src.backend.tensorflow.optimizer:TFOptimizer"
_EMBEDDING = "keras.src.layers.core.embedding:Embedding"
_PREPROCESSING = "keras.src.layers.preprocessing"
_SAVING = "keras.src.saving.saving_lib"
_ARCHIVE = "tfps_plugin._compat.keras_saving:ExportArchive"
_SAVEABLE = (
    "tensorflow.python.training.saving.saveable_object_util:TrackableSaveable"
)

_TURNS = (
    "A function that is registered while the cluster's membership changes "
    "fails, or stays unknown to a task."
)

_BACKWARD = (
    "Tapes forget devices: gradients of what is on another worker would be "
    "computed by the one that runs the step."
)

# Patches that a connection to a cluster needs.
CONNECTION = (
    Patch(
        f"{_CONTEXT}.add_c_function",
        "self, c_func",
        "_compat.runtime.tensorflow_functions:in_turn",
        _TURNS,
    ),
    Patch(
        f"{_CONTEXT}.add_function_def",
        "self, fdef",
        "_compat.runtime.tensorflow_functions:in_turn",
        _TURNS,
    ),
    Patch(
        f"{_CONTEXT}.remove_function",
        "self, name",
        "_compat.runtime.tensorflow_functions:forgotten_in_turn",
        _TURNS,
    ),
    Patch(
        "tensorflow.python.framework.constant_op:convert_to_eager_tensor",
        "value, ctx, dtype",
        "_compat.runtime.tensorflow_constants:for_one_caller",
        "TensorFlow stops all threads while it makes a constant on another "
        "task, and threads share its copy too early.",
    ),
    Patch(
        "tensorflow.python.eager.cancellation:context",
        "",
        "cluster.calls.cancelled_calls:manager_of_thread",
        "TensorFlow keeps the present call's cancellation in a global that "
        "all threads share.",
    ),
)

# Patches that variables need, however they are trained.
VARIABLES = (
    Patch(
        "tensorflow.python.eager.execute:record_gradient",
        "op_name, inputs, attrs, outputs",
        "_compat.graph.tensorflow_gradients:recorded_with_device",
        _BACKWARD,
    ),
    Patch(
        "tensorflow.python.eager.record:record_operation",
        "op_type, output_tensors, input_tensors, backward_function, "
        "forward_function",
        "_compat.graph.tensorflow_gradients:recorded_on_device",
        _BACKWARD,
    ),
    Patch(
        "tensorflow.python.framework.func_graph:FuncGraph.__init__",
        "self, name",
        "_compat.graph.tensorflow_tapes:noted",
        "A function that is traced cannot ask whether a tape was opened in it, "
        "or around it.",
    ),
    Patch(
        "tensorflow.python.ops.while_v2:_zeros_like",
        "op_input, op_output",
        "_compat.graph.tensorflow_loops:zeros_of_known_shape",
        "Gradients of loops ask a table's tape source for a shape that only "
        "its handle knows.",
    ),
    Patch(
        "tensorflow.python.ops.cond_v2:_create_zeros_for_none_grads",
        "forward_graphs, grad_graphs",
        "_compat.graph.tensorflow_loops:no_rows_for_none_grads",
        "A branch without a lookup would send zeros for all rows of a table.",
    ),
    Patch(
        "tensorflow.python.ops.parallel_for.control_flow_ops:_pfor_impl",
        "loop_fn, iters, fallback_to_while_loop",
        "_compat.graph.tensorflow_vectorizing:vectorize",
        "Lookups of distinct rows have no vectorized form, so they have to "
        "know that they are vectorized.",
    ),
    Patch(
        f"{_SAVEABLE}.__init__",
        "self, obj, specs, name, local_names, prefix",
        "_compat.graph.tensorflow_saving:make_for_slices",
        "A checkpoint hands only the first slice to a variable, and not those "
        "that its ps ask for.",
    ),
)

_FIT = (
    "self, x, y, batch_size, epochs, verbose, callbacks, validation_split, "
    "validation_data, shuffle, class_weight, sample_weight, initial_epoch, "
    "steps_per_epoch, validation_steps, validation_batch_size, "
    "validation_freq"
)
_CALL = (
    "The call has to run under the scope, check its arguments, and leave the "
    "cluster usable after an error."
)
_BESIDE = (
    "Outputs that a parameter server has computed would travel to the worker."
)
_STEPS = "A strategy cannot say how the steps of Keras's loop run."

_TRAINING = (
    Patch(
        f"{_TRAINER}.fit",
        _FIT,
        "training.patches.trainer_methods:with_call",
        _CALL,
    ),
    Patch(
        f"{_TRAINER}.evaluate",
        "self, x, y, batch_size, verbose, sample_weight, steps, callbacks",
        "training.patches.trainer_methods:with_call",
        _CALL,
    ),
    Patch(
        f"{_TRAINER}.predict",
        "self, x, batch_size, verbose, steps, callbacks",
        "training.patches.trainer_methods:with_call",
        _CALL,
    ),
    # On the base class: a model whose class defines compile() counts as
    # customized when it is saved and loaded.
    Patch(
        "keras.src.trainers.trainer:Trainer.compile",
        "self, optimizer, loss, loss_weights, metrics, weighted_metrics, "
        "run_eagerly, steps_per_execution, jit_compile, auto_scale_loss",
        "training.patches.trainer_methods:compile_in_scope",
        "Metrics and the optimizer are made by compile(), perhaps outside the "
        "scope.",
    ),
    Patch(
        f"{_TRAINER}.make_train_function",
        "self, force",
        "training.patches.trainer_methods:make_train_function",
        _STEPS,
    ),
    Patch(
        f"{_TRAINER}.make_test_function",
        "self, force",
        "training.patches.trainer_methods:make_test_function",
        _STEPS,
    ),
    Patch(
        f"{_TRAINER}.make_predict_function",
        "self, force",
        "training.patches.trainer_methods:make_predict_function",
        _STEPS,
    ),
    Patch(
        f"{_TRAINER}._maybe_symbolic_build",
        "self, iterator, data_batch",
        "training.patches.trainer_methods:build_from_spec",
        "Keras begins an epoch to see what a batch looks like.",
    ),
    Patch(
        "keras.src.backend.tensorflow.trainer:TFEpochIterator",
        "distribute_strategy",
        "training.patches.trainer_methods:epoch_iterator",
        "Workers read the input of fit(), and Keras asks nobody for its "
        "iterator.",
    ),
    Patch(
        "keras.src.backend.common.variables:register_uninitialized_variable",
        "variable",
        "_compat.keras:registered_with_device",
        "While Keras builds a model symbolically, it makes variables later, "
        "outside of every tf.device.",
    ),
    Patch(
        "keras.src.trainers.trainer:Trainer.compute_loss",
        "self, x, y, y_pred",
        "training.patches.losses_beside_outputs:loss_beside_outputs",
        _BESIDE,
    ),
    Patch(
        "keras.src.trainers.trainer:Trainer.compute_metrics",
        "self, x, y, y_pred",
        "training.patches.losses_beside_outputs:metrics_beside_outputs",
        _BESIDE,
    ),
    Patch(
        "keras.src.layers.layer:Layer._get_regularization_losses",
        "self",
        "training.patches.table_regularizers:penalties",
        "The penalty of a table would read all of its rows in every step.",
    ),
)

_WHOLE_TABLE = "A lookup would read the whole table."

_LOOKUPS_AND_ASSIGNMENTS = (
    Patch(
        f"{_VARIABLE}._initialize",
        "self, value",
        "training.patches.variable_methods:on_ps",
        "Keras's methods read and assign whole variables, and a strategy "
        "cannot choose the class of a keras.Variable.",
    ),
    # keras.ops.take finds its implementation there.
    Patch(
        "keras.src.backend.tensorflow.numpy:take",
        "x, indices, axis",
        "training.patches.lookups:take",
        _WHOLE_TABLE,
    ),
    Patch(
        f"{_EMBEDDING}.call",
        "self, inputs",
        "training.patches.lookups:embedding_call",
        "With LoRA, the layer adds matrices of the whole table's size.",
    ),
    # tf.nn.embedding_lookup, embedding_lookup_sparse and
    # safe_embedding_lookup_sparse end in two functions, for any kind of ids.
    Patch(
        "tensorflow.python.ops.embedding_ops:_embedding_lookup_and_transform",
        "params, ids",
        "training.patches.lookups:embedding_lookup",
        _WHOLE_TABLE,
    ),
    Patch(
        "tensorflow.python.ops.embedding_ops:embedding_lookup_sparse_impl",
        "params, segment_ids, sp_weights, ids, combiner, ignore_weights, "
        "max_norm, allow_fast_lookup, partition_strategy, name",
        "training.patches.lookups:embedding_lookup_sparse",
        _WHOLE_TABLE,
    ),
    Patch(
        "tensorflow.python.ops.ragged.ragged_gather_ops:gather",
        "params, indices, validate_indices, axis, batch_dims, name",
        "training.patches.lookups:ragged_gather",
        _WHOLE_TABLE,
        api="tensorflow:gather",
    ),
)

_REPLICAS = (
    Patch(
        "tensorflow.python.eager.polymorphic_function.function_context:"
        "make_function_context",
        "scope_type",
        "strategy.replicas.inner_functions:traced_for_each",
        "A step would take the trace that another step, or another replica, "
        "has of a function.",
    ),
    *(
        Patch(
            f"keras.src.metrics.reduction_metrics:{name}.update_state",
            "self, values, sample_weight",
            "training.patches.replica_metrics:update_state",
            "A scalar without a weight counts as a batch, and a replica has a "
            "part of one.",
        )
        for name in ("Mean", "Sum")
    ),
)

_LOSSES = tuple(
    Patch(
        f"tensorflow._api.v2.nn:{name}",
        parameters,
        f"training.patches.average_losses:{name}",
        "It divides by the number of replicas, for gradients that are added "
        "up; here they are averaged over examples.",
    )
    for name, parameters in (
        (
            "compute_average_loss",
            "per_example_loss, sample_weight, global_batch_size",
        ),
        ("scale_regularization_loss", "regularization_loss"),
    )
)

_OPTIMIZERS = (
    Patch(
        f"{_OPTIMIZER}.build",
        "self, variables",
        "training.optimizers.methods:build",
        "What an optimizer cannot update on parameter servers is refused "
        "before it runs.",
    ),
    Patch(
        "keras.src.optimizers.adafactor:Adafactor.build",
        "self, var_list",
        "training.optimizers.methods:build_beside",
        "It does not say whose slots it makes, and they would be on another "
        "parameter server than their variable.",
    ),
    Patch(
        f"{_OPTIMIZER}.apply",
        "self, grads, trainable_variables",
        "training.optimizers.methods:apply",
        "Keras reads whole variables on the worker; updates run where the "
        "variables live.",
    ),
    Patch(
        "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer.apply",
        "self, grads, trainable_variables",
        "training.optimizers.methods:apply_scaled",
        "Workers that make a step together skip it together.",
    ),
    Patch(
        "keras.src.optimizers.loss_scale_optimizer"
        ":LossScaleOptimizer.check_finite",
        "self, grads",
        "training.optimizers.methods:check_finite",
        "Keras makes a sparse gradient dense to see whether it is finite.",
    ),
)

_FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function"

_INPUTS = (
    Patch(
        "tensorflow.python.framework.func_graph:FuncGraph.capture",
        "self, tensor, name, shape",
        "training.patches.preprocessing:capture",
        "Functions for workers capture tables and datasets that were made "
        "outside the scope, on the chief.",
    ),
    *(
        Patch(
            f"{_PREPROCESSING}.{method}",
            parameters,
            "training.patches.preprocessing:outside_functions",
            "Inside a dataset function there are no data yet, and the loop "
            "over them would never end.",
        )
        for method, parameters in (
            ("discretization:Discretization.adapt", "self, data"),
            # The adapt() of IntegerLookup, StringLookup and TextVectorization
            # begins with it.
            ("index_lookup:IndexLookup.reset_state", "self"),
            ("normalization:Normalization.adapt", "self, data"),
        )
    ),
    Patch(
        f"{_PREPROCESSING}.normalization:Normalization.build",
        "self, input_shape",
        "training.patches.preprocessing:with_lasting_constants",
        "The constants that it makes in a function belong to that one alone, "
        "but several functions use the layer.",
    ),
)

_BLOCKS = (
    "A store takes and gives whole arrays, and the chief has no room for a "
    "table."
)

_FILES = (
    # With these, the stores themselves need not be replaced.
    Patch(
        f"{_SAVING}:_save_state",
        "saveable, weights_store, assets_store, inner_path, visited_saveables",
        "training.saving.block_stores:in_blocks",
        _BLOCKS,
    ),
    Patch(
        f"{_SAVING}:_load_state",
        "saveable, weights_store, assets_store, inner_path",
        "training.saving.block_stores:in_blocks",
        _BLOCKS,
    ),
    Patch(
        f"{_SAVING}:is_memory_sufficient",
        "model",
        "training.saving.block_stores:never_for_tables",
        "Keras would make a file with tables in memory, by the size of the "
        "chief alone.",
    ),
    Patch(
        f"{_OPTIMIZER}.save_own_variables",
        "self, store",
        "training.saving.block_stores:save_variables_themselves",
        "Optimizers give the store arrays of their slots, where layers give "
        "it variables.",
    ),
    Patch(
        f"{_EMBEDDING}.embeddings",
        ANY_PARAMETERS,
        "training.saving.lora_saving:merged_later",
        "With LoRA, it merges the whole table, and Keras's savers read it.",
    ),
    Patch(
        f"{_ARCHIVE}._filter_and_track_resources",
        "self",
        "training.saving.exporting:track_tables",
        "Keras traces endpoints before TensorFlow traces them for a "
        "SavedModel.",
    ),
    Patch(
        f"{_FUNCTION}:Function.get_concrete_function",
        "self, *args, **kwargs",
        "training.saving.exporting:concrete_function",
        "A SavedModel cannot trace a concrete function again, which was traced "
        "for the cluster.",
    ),
)

# All patches, by purpose.
GROUPS = {
    "Connecting to a cluster": CONNECTION,
    "Gradients and checkpoints of variables": VARIABLES,
    "compile, fit, evaluate and predict": _TRAINING,
    "Lookups and assignments": _LOOKUPS_AND_ASSIGNMENTS,
    "Losses": _LOSSES,
    "Replicas": _REPLICAS,
    "Optimizers": _OPTIMIZERS,
    "Input and preprocessing": _INPUTS,
    "Files of weights and SavedModels": _FILES,
}
ROWS = tuple(patch for patches in GROUPS.values() for patch in patches)
