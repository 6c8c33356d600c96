"""The perplexity of texts under a model with N-gram heads, as a metric of the library `evaluate`."""
