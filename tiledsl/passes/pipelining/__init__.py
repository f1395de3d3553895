"""Loops whose copies run ahead, and the groups of asynchronous copies."""
