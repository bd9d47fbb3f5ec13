"""A library over HTTP, on a web page and as tools for agents."""
