"""A library's papers and vectors for data bases of vectors that others run."""

from scimult.library.feeds.targets import FILES, feed_files, feed_qdrant

__all__ = ["FILES", "feed_files", "feed_qdrant"]
