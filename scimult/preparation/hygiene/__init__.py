"""Duplicates, overlap with evaluation sets, leak-free splits and the data card."""
