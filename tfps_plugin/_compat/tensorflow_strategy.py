"""The base classes of a `tf.distribute.Strategy`.

`tf.distribute.Strategy` is public; what a subclass has to implement is not.
"""

from tensorflow.python.distribute import distribute_lib
from tensorflow.python.framework import ops

# run() and non-slot updates live in V1 of the extended class; with V2,
# Strategy.run fails.
StrategyExtended = distribute_lib.StrategyExtendedV1
ReplicaContext = distribute_lib.ReplicaContext
UpdateContext = distribute_lib.UpdateContext
InputContext = distribute_lib.InputContext

# Lookup tables ask these scopes who is to make them.
resource_creator_scope = ops.resource_creator_scope
