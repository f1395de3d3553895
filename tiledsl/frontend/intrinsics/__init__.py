"""What each function of `tiledsl.lang` does, one file a family. Importing a file registers its handlers."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
