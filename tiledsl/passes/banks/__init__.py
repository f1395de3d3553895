"""Shared memory: what is accessed together, wavefronts, layouts."""
