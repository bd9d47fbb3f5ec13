"""A library over HTTP, on a page and as tools of an agent."""
