"""The version of the package, also written into the code that checkpoints carry."""

__version__ = "0.2.0"
