"""trimtab keeps a local language model useful while the device under it changes."""

import os

__version__ = "0.1.0"

# onnxruntime reads it when it is loaded, and would keep a database of its use in the user's cache
# folder. No process of ours wants that, and this line runs before any of them can load it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
