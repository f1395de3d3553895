"""A fuzzer: mutated kernels, mutated texts of IR, odd calls, and sequences of calls.

    python -m tests.fuzz sources --seed 1 --count 20000 --jobs 16 --state /tmp/fuzz

`corpus` finds what to mutate, and `mutate_source` and `mutate_text` mutate it. `sources`, `texts`, `calls`,
`sequences`, and `fresh` each make a case of a seed and a number, and run it; `outcome` says which results are findings.
`runner` spreads cases over processes that it watches, and keeps their outcomes in a folder.
"""
