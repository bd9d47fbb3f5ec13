"""Write a model as a Python wheel, for machines without a network.

Its entry point in the group ``scimult.models`` has the model's name, by which `hub` finds it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from scimult import __version__
from scimult.checkpoints.hub import GROUP
from scimult.checkpoints.pretrained import Pretrained, save_pretrained
from scimult.errors import ConfigError
from scimult.files import atomic_file

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?")
# Fixed for all entries of the archive, so that the same model gives the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)
_WHEEL = """\
Wheel-Version: 1.0
Generator: scimult
Root-Is-Purelib: true
Tag: py3-none-any
"""


def write_wheel(folder: Path, pretrained: Pretrained, name: str, version: str) -> Path:
    """Write a wheel that holds a model into a folder, and return its path.

    ``package:NAME`` opens the model once the wheel is installed; ``version`` is the package's.

    Raises
    ------
    ConfigError
        If the name or the version is not valid for a package.
    StorageError
        If the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        fix = "use lower-case letters, digits and single hyphens, such as my-model"
        raise ConfigError("not a valid package name", value=name, fix=fix)
    if not _VERSION.fullmatch(version):
        raise ConfigError(
            "not a valid package version", value=version, fix="use a form such as 1.0 or 2026.11"
        )
    module = f"scimult_model_{name.replace('-', '_')}"
    info = f"{module}-{version}.dist-info"
    with TemporaryDirectory() as scratch:
        model = Path(scratch) / name
        save_pretrained(
            model, pretrained.model.state_dict(), pretrained.tokenizer, pretrained.config
        )
        entries = {
            f"{module}/model/{path.name}": path.read_bytes() for path in sorted(model.iterdir())
        }
    docstring = f'"""The model {name!r} of scimult: SciMult.from_pretrained("package:{name}")."""\n'
    entries[f"{module}/__init__.py"] = docstring.encode()
    entries |= {f"{info}/{file}": text.encode() for file, text in _metadata(module, name, version)}
    record = "".join(f"{path},{_digest(content)}\n" for path, content in entries.items())
    entries[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with atomic_file(wheel) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for path, content in entries.items():
            entry = zipfile.ZipInfo(path, _DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return wheel


def _metadata(module: str, name: str, version: str) -> list[tuple[str, str]]:
    metadata = f"""\
Metadata-Version: 2.1
Name: {module.replace("_", "-")}
Version: {version}
Summary: The model {name} of scimult
Requires-Dist: scimult>={__version__}
"""
    return [
        ("METADATA", metadata),
        ("WHEEL", _WHEEL),
        ("entry_points.txt", f"[{GROUP}]\n{name} = {module}\n"),
    ]


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"sha256={digest},{len(content)}"
