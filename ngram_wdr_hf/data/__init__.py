"""Data for training and evaluation, from files, folders and dataset names."""
