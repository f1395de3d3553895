"""Rings and roles: their ends, and the passes that make barriers and branches of them."""
