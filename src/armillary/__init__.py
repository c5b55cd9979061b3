"""Armillary: one language model, many agent harnesses, one exact token record."""

__version__ = "0.1.0"
