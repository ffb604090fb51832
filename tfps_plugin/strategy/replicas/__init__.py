"""Replicas of a step, and what they return.

replica_context.py  the context of a step, and reductions over workers in it
replica_results.py  results of the workers of a synchronous step
"""
