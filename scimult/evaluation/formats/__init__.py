"""Readers of benchmark files, one module per layout."""
