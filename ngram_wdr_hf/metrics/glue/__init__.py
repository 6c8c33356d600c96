"""GLUE's own metrics, as a metric of the library `evaluate`."""
