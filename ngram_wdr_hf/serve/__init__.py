"""Checkpoints behind an OpenAI-style API, by the server of Transformers."""
