"""Reviewers for papers: affinities from what reviewers wrote, and the best assignment."""
