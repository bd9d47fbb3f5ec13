"""Reports that people read: leaderboard, tests, curves, examples, maps and costs of results."""
