"""The command line as ``python -m scimult``: where the script `scimult` is not on the path."""

from scimult.cli.main import app

# Processes that this one starts may import this module, too.
if __name__ == "__main__":
    app()
