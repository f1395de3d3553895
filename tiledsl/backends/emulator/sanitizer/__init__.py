"""Checks of a run, as hooks: hazards, reads of what nobody wrote, registers of products."""
