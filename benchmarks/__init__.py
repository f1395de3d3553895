"""Measurements of tiledsl, each a module that runs by itself: ``python -m benchmarks.gemm --help``."""
