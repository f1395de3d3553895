"""Passes on scalars and control flow: fold, merge, move, drop, order, widths of indices."""
