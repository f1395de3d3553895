"""Compiled loops for what NumPy is too slow for."""
