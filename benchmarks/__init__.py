"""Timings and sizes, measured side by side in one run."""
