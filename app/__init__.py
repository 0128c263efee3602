"""Stoker's command line: commands, supervision, model store and doctor. Holds the version."""

__version__ = "0.1.0"
