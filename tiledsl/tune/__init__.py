"""The tuner: which consts of a kernel are fastest for a product. docs/tuning.md says how it is used.

`space.py`: what there is to try. `workers.py`: processes that may crash or hang. `search.py`: candidates are built
ahead by several of them, and timed by one. `records.py`: results on disk. `carried.py`: builds from another machine.
`products.py`: building and timing kernels that multiply matrices. `command.py`: ``python -m tiledsl tune``.
"""
