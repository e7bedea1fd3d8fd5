"""trimtab keeps a local language model useful while the device under it changes."""

__version__ = "0.1.0"
