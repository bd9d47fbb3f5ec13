"""Benchmarks, protocols and metrics; the systems that are scored; results and tables."""
