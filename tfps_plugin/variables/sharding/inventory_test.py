"""Tests of the list of what parameter servers hold."""

import numpy as np
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.sharding.inventory import Inventory
from tfps_plugin.variables.updates.update_lock import UpdateLocks


def test_tallies_are_no_variables_and_begin_at_zero_again() -> None:
    inventory = Inventory(UpdateLocks())
    variable = testing.remote_variable(1.0)
    inventory.add(variable)
    tally = inventory.new_tally(
        testing.LOCAL_DEVICE, tf.TensorShape([3]), "tally"
    )
    gone = inventory.new_tally(testing.LOCAL_DEVICE, tf.TensorShape([]), "gone")
    np.testing.assert_array_equal(tally.numpy(), [0, 0, 0])
    devices = [variable.device]
    assert [id(one) for one in inventory.on(devices)] == [id(variable)]
    tally.assign_add([1, 2, 3])
    handle = tally.own_handle
    del gone
    inventory.remake(["/job:ps/task:7"])
    np.testing.assert_array_equal(tally.numpy(), [1, 2, 3])
    assert [id(one) for one in inventory.remake(devices)] == [id(variable)]
    assert tally.own_handle is not handle
    np.testing.assert_array_equal(tally.numpy(), [0, 0, 0])


def test_a_tally_can_be_made_while_a_function_is_traced() -> None:
    inventory = Inventory(UpdateLocks())
    made: list[RemoteVariable] = []

    @tf.function
    def add() -> None:
        if not made:
            made.append(
                inventory.new_tally(
                    testing.LOCAL_DEVICE, tf.TensorShape([]), "tally"
                )
            )
        made[0].assign_add(1)

    for _ in range(3):
        add()
    assert int(made[0].numpy()) == 3
