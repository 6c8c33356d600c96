"""BLEU and chrF of translations, as a metric of the library `evaluate`."""
