"""Training with the stock Trainer, from arguments to a finished run."""
