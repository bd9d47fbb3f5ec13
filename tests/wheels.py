"""A wheel of the project, built from a copy of its sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def build_wheel(repository: Path, folder: Path) -> Path:
    """Build the wheel in ``folder``, which must not exist, and return it."""
    folder.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repository / "scimult", folder / "scimult", ignore=unwanted)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, folder)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder / "dist"))
    command = [sys.executable, "-m", "pip", "wheel", *options, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (folder / "dist").glob("scimult-*.whl")
    return built
