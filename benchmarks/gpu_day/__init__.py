"""Qualify a GPU machine in three calls: does it run, how fast is it, a real training run.

``python -m benchmarks.gpu_day run | speed | train``; docs/performance.md shows what each says.
Every step is a process of its own with a time box, and what it finds is on disk at once.
"""
