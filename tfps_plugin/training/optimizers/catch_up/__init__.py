"""Rows that catch up with the optimizer steps that did not touch them."""
