"""Qualify a GPU machine in three calls: does it run, how fast is it, a real training run.

``python -m benchmarks.gpu_day run | speed | train``; docs/gpu_machine.md shows their output.
Every step is a separate process with a time limit, and its findings are on disk at once.
"""
