"""Measurements: scripts that record rows, the rows, and the tables made from them."""
