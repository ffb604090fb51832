"""The only door to private TensorFlow and Keras API.

Each module has one topic, and each name says why it is needed.

runtime/             the eager context, its tasks, and the calls of functions
graph/               graphs of functions, and the objects that they hold
patches.py           replaces their attributes, and restores them
patch_table.py       lists every attribute that is replaced
keras.py             the trainer, epoch iterator, variables, initializers
keras_optimizers.py  the parts of optimizer.apply
keras_callbacks.py   the files of the TensorBoard callback
keras_saving.py      files of weights
keras_lora.py        embedding layers with LoRA
"""
