"""Placement by hand: what `tf.device` and `tfps.on_ps` name.

hand_placement.py  the ps that tf.device names for a variable
ps_computation.py  `tfps.on_ps`: computes where variables are
"""
