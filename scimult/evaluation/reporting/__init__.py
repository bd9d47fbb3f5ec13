"""Reports for readers: leaderboard, tests, curves, examples, maps and costs of results."""
