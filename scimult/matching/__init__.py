"""Reviewer assignment: affinities from reviewers' publications, and the best assignment."""
