"""Compiles kernels, keeps what was built in memory and on disk, and explains it."""
