"""Measurements of tiledsl, each a module that can be run: ``python -m benchmarks.gemm --help``."""
