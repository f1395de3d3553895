"""Ahead-of-time export: cubins, a manifest that says how to launch them, and a C header with the same (docs/export.md).

`products.py`: the kernels that `gemm` would launch. `manifest.py`: what a launch needs, as data with a version.
`header.py`: that data for C. `command.py`: ``python -m tiledsl export``. The facts are those that the runtime uses:
`ir/abi.py`, `runtime/tensor_maps.py`, `compilation/compiled.py`.
"""

from tiledsl.export.manifest import VERSION, Exported, manifest
from tiledsl.export.products import products

__all__ = ["VERSION", "Exported", "manifest", "products"]
