"""Rules that TensorFlow's aggregations of variables require."""

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables.states.merge_rule import MergeRule

_RULES = {
    tf.VariableAggregation.SUM: MergeRule.SUM,
    tf.VariableAggregation.MEAN: MergeRule.MEAN,
    tf.VariableAggregation.ONLY_FIRST_REPLICA: MergeRule.FIRST,
}


def rule_of(
    dtype: tf.DType,
    name: str,
    synchronization: tf.VariableSynchronization,
    aggregation: tf.VariableAggregation,
) -> MergeRule:
    """Returns the rule that a variable's aggregation requires.

    Args:
        dtype: Dtype of the variable.
        name: Name of the variable, for the error.
        synchronization: As in `tf.Variable`.
        aggregation: As in `tf.Variable`.

    Raises:
        VariableCreationError: If copies are to be read but the aggregation
            does not say how to merge them, or values of that dtype have no
            mean.
    """
    on_read = synchronization == tf.VariableSynchronization.ON_READ
    if on_read and aggregation == tf.VariableAggregation.NONE:
        raise errors.VariableCreationError(
            f"Every worker has its own copy of the variable {name!r}, and "
            "nothing says what their value is together. Expected an "
            "aggregation of SUM, MEAN or ONLY_FIRST_REPLICA with "
            f"synchronization=ON_READ. Received: aggregation={aggregation}"
        )
    if aggregation == tf.VariableAggregation.MEAN and not dtype.is_floating:
        raise errors.VariableCreationError(
            f"The variable {name!r} has a copy on every worker, whose mean "
            "is not a value of its dtype. Received: aggregation=MEAN, "
            f"dtype={dtype.name}. Use a floating dtype, or SUM."
        )
    return _RULES.get(aggregation, MergeRule.FIRST)
