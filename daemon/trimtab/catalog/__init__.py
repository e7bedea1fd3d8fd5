"""What is on disk: models, their variants and what is known about them.

The controller imports this package, so nothing here imports numpy, onnx or an engine. Building,
proving and fetching live in modules of their own, which only the command line imports.
"""

from trimtab.catalog.load import Catalog, DamagedModel, load_catalog
from trimtab.catalog.locations import cache_folder, models_folder

__all__ = ["Catalog", "DamagedModel", "cache_folder", "load_catalog", "models_folder"]
