"""Experiments: tables of systems to train, their runs, statistics and pages."""
