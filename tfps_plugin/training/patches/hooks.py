"""Installs parameter-server training into Keras: all of it, in this place.

Keras has no way to say how a strategy runs a step. What is replaced:

1. the epoch iterator that fit(), evaluate() and predict() make, and how the
   model is built from it;
2. `make_train_function`, `make_test_function` and `make_predict_function`:
   steps go to workers;
3. `compile`, `fit`, `evaluate`, `predict`: thin wrappers, for the scope, the
   checks of arguments, and for leaving the cluster usable after an error;
4. three methods of `keras.Variable`;
5. `keras.ops.take`, `keras.layers.Embedding.call`, and TensorFlow's lookups
   of embeddings: only the rows that are needed travel; and what a branch
   without a lookup gives as the gradient of a table: no rows; and lookups in
   functions that `tf.vectorized_map` vectorizes: all elements' at once;
6. `build` and `apply` of optimizers: they run where the variables live;
7. the penalties of a layer's weights: on the rows that a batch looks up;
8. how files of weights take and give large tables: block by block;
9. what functions for workers capture of lookup tables that were made outside
   the scope, and of SavedModels;
10. `adapt` of preprocessing layers, refused inside a dataset function; `build`
   of Normalization, whose constants serve more than one function;
11. how `keras.export.ExportArchive` traces endpoints and finds their variables;
    `get_concrete_function`, whose results are traced anew for SavedModels.

Each does what it did before for models and variables that are not ours. They
are installed once, with the first strategy, not by importing anything.
"""

import threading

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.recovery import failover
from tfps_plugin.strategy import parameter_server_strategy

# Files of models name its classes: with a strategy, Keras knows them.
from tfps_plugin.training import layers as layers
from tfps_plugin.training.optimizers import methods as optimizer_methods
from tfps_plugin.training.patches import lookups
from tfps_plugin.training.patches import preprocessing
from tfps_plugin.training.patches import scope_check
from tfps_plugin.training.patches import table_regularizers
from tfps_plugin.training.patches import trainer_methods
from tfps_plugin.training.patches import variable_methods
from tfps_plugin.training.saving import exporting
from tfps_plugin.training.saving import lora_saving
from tfps_plugin.training.saving import table_saving

_lock = threading.Lock()
_installed = False


def install(strategy: object = None) -> None:
    """Installs the hooks; calling it again does nothing.

    Args:
        strategy: The strategy that was just made; None: only into Keras.
    """
    global _installed
    if strategy is not None:
        failover.install(strategy)
    with _lock:
        if _installed:
            return
        _installed = True
    trainer = keras_compat.TensorFlowTrainer
    keras_compat.set_epoch_iterator(trainer_methods.make_epoch_iterator)
    trainer.make_train_function = trainer_methods.make_function(
        trainer.make_train_function, "train_function", "train_step"
    )
    trainer.make_test_function = trainer_methods.make_function(
        trainer.make_test_function, "test_function", "test_step"
    )
    trainer.make_predict_function = trainer_methods.make_predict_function(
        trainer.make_predict_function
    )
    trainer._maybe_symbolic_build = trainer_methods.build_from_spec(
        trainer._maybe_symbolic_build
    )
    # On the base class: a model whose class has a compile() of its own counts
    # as customized when it is saved and loaded.
    base = keras_compat.BaseTrainer
    base.compile = trainer_methods.compile_in_scope(base.compile)
    local_models = scope_check.LocalModels()
    for method in ("fit", "evaluate", "predict"):
        original = getattr(trainer, method)
        setattr(
            trainer,
            method,
            trainer_methods.with_call(original, method, local_models),
        )
    variable_methods.install()
    optimizer_methods.install()
    table_regularizers.install()
    lookups.install()
    table_saving.install()
    preprocessing.install()
    lora_saving.install()
    exporting.install()


parameter_server_strategy.construction_hooks.append(install)
