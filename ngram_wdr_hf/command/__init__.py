"""The command `ngram-wdr`: its entry point, and a module per command for training."""
