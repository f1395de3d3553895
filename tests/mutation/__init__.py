"""Proof by mutation: what the check of the emulator finds of faults that are planted, one by one, in the gallery.

`subjects` are the kernels and their inputs, `operators` make faults, `table` says which of them each kind of op gets,
`runner` runs a mutant in a process of its own, `equivalent` proves that one is no fault, `report` writes the table.
``python -m tests.mutation --help``; docs/check.md says what the table shows.
"""
