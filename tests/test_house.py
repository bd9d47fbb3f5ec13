"""Project rules that tools can check: style, types, layers, sizes, packaging, documents."""

from __future__ import annotations

import ast
import configparser
import doctest
import os
import re
import shlex
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from scimult.cli.extras import EXTRAS_OF
from scimult.cli.main import app
from tests.wheels import build_wheel

CODE = ("scimult", "benchmarks", "launch", "examples", "tests")
FOLDERS = "scimult|benchmarks|tests|configs|launch|examples|docs|[.]github"


def _run(repository: Path, *command: str) -> str:
    """Run a tool in the repository; show its output on failure."""
    found = subprocess.run(
        [sys.executable, *command], cwd=repository, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff(repository: Path, arguments: list[str]) -> None:
    _run(repository, "-m", "ruff", *arguments, *CODE)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="numpy's last types for 3.10 know less")
@pytest.mark.timeout(900)  # without its cache, on a busy machine
def test_types(repository: Path) -> None:
    assert "Success" in _run(repository, "-m", "mypy")


def test_layers(repository: Path) -> None:
    start = "from importlinter.cli import lint_imports_command as run; run()"
    assert " 0 broken" in _run(repository, "-c", start)


def test_the_page_of_architecture_has_the_layers_that_are_checked(repository: Path) -> None:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(repository / "setup.cfg", encoding="utf-8")
    checked = settings["importlinter:contract:layers"]["layers"].split("\n")
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.partition("## Layers")[2].split("```")[1].strip().splitlines()
    assert block[1:] == [line for line in checked if line]


def test_no_file_is_too_long(repository: Path) -> None:
    lengths = {
        path.relative_to(repository): len(path.read_text(encoding="utf-8").splitlines())
        for folder in CODE
        for path in (repository / folder).rglob("*.py")
    }
    assert len(lengths) > 20
    assert {str(path): length for path, length in lengths.items() if length > 400} == {}


def test_every_requirement_is_used(repository: Path) -> None:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(repository / "setup.cfg", encoding="utf-8")
    modules = {
        "PyStemmer": "Stemmer",
        "faiss-cpu": "faiss",
        "pyyaml": "yaml",
        "scikit-learn": "sklearn",
        "tensorboard": "torch.utils.tensorboard",
    }
    required = [settings["options"]["install_requires"]]
    required += [settings["options.extras_require"][extra] for extra in ("train", "eval")]
    names = re.findall(r"^[\w-]+", "\n".join(required), re.MULTILINE)
    code = "\n".join(path.read_text("utf-8") for path in (repository / "scimult").rglob("*.py"))
    imports = {name: rf"^\s*(from|import) {modules.get(name, name)}\b" for name in names}
    assert len(names) > 10
    expected_by_users = {"accelerate", "faiss-cpu", "sentencepiece"}
    unused = {name for name in names if not re.search(imports[name], code, re.MULTILINE)}
    assert unused - expected_by_users == set()


def test_every_import_is_required(repository: Path) -> None:
    """What verbs need beyond the requirements is in ``EXTRAS_OF``, checked in test_extras.py."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(repository / "setup.cfg", encoding="utf-8")
    required = re.findall(r"^[\w-]+", settings["options"]["install_requires"], re.MULTILINE)
    modules = {"faiss-cpu": "faiss", "pyyaml": "yaml"}
    known = {modules.get(name, name) for name in required} | set(EXTRAS_OF) | {"scimult"}
    known |= {"anyio", "markupsafe", "starlette"}  # of mcp, jinja2 and fastapi
    known |= {"triton"}  # of torch built for CUDA
    imported: dict[str, Path] = {}
    for path in (repository / "scimult").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            imported |= {name.partition(".")[0]: path for name in names}
    assert len(imported) > 50
    unknown = imported.keys() - known - sys.stdlib_module_names
    assert {name: str(imported[name]) for name in unknown} == {}


def test_requirements_have_one_lower_bound_each(repository: Path) -> None:
    """Extras that share a package must not promise two of them."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(repository / "setup.cfg", encoding="utf-8")
    lists = [settings["options"]["install_requires"], *settings["options.extras_require"].values()]
    lines = re.findall(r"^(?!%)([\w-]+)(?:\[\w+\])?([^;\n]*)", "\n".join(lists), re.MULTILINE)
    bounds: dict[str, set[str]] = {}
    for name, bound in lines:
        bounds.setdefault(name, set()).add(bound)
    assert len(bounds) > 50
    assert bounds.pop("mteb") == {">=2.0", ">=2.26"}  # by Python
    assert bounds.pop("torch") == {">=2.6", ">=2.7"}  # for exports to ONNX
    assert {name for name, found in bounds.items() if len(found) > 1} == set()
    assert {name for name, (bound,) in bounds.items() if ">=" not in bound} == set()


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build a wheel from a copy of the sources and return the names of the files in it."""
    built = build_wheel(repository, tmp_path_factory.mktemp("source") / "copy")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_and_data_file(repository: Path, wheel: set[str]) -> None:
    ours = {
        path.relative_to(repository).as_posix()
        for path in (repository / "scimult").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"scimult/cli/main.py", "scimult/tasks/catalogue.yaml", "scimult/py.typed"} <= ours
    assert ours - wheel == set()


def test_the_wheel_holds_nothing_else_but_its_licence(wheel: set[str]) -> None:
    others = {name for name in wheel if not name.startswith("scimult/")}
    assert all(".dist-info/" in name for name in others)
    assert any(name.endswith("/LICENSE") for name in others)


def test_citation_names_the_five_papers(repository: Path) -> None:
    citation = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == "Apache-2.0"
    assert len(citation["references"]) == 5
    for paper in citation["references"]:
        assert paper["title"]
        assert all(author["family-names"] for author in paper["authors"])


def _pages(repository: Path) -> list[Path]:
    folders = ("docs", "examples", ".github")
    return [*repository.glob("*.md"), *(p for f in folders for p in (repository / f).rglob("*.md"))]


def test_documents_name_files_that_exist(repository: Path) -> None:
    pages = _pages(repository)
    named: list[tuple[str, Path]] = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
        paths = re.findall(rf"`((?:{FOLDERS})/[\w/.-]+)`", text)
        named += [(page.name, page.parent / link) for link in links]
        named += [(page.name, repository / path) for path in paths]
    assert len(named) > 20
    assert [(page, str(path)) for page, path in named if not path.exists()] == []


def test_tables_are_short(repository: Path) -> None:
    """A cell of more than 25 words is a paragraph; names say most of where to change what."""
    docs = repository / "docs"
    long = []
    for page in [repository / "README.md", *docs.rglob("*.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for row in re.findall(r"^\|.*", text, re.M):
            cells = re.split(r"(?<!\\)\|", row)
            long += [(page.name, cell) for cell in cells if len(cell.split()) > 25]
    assert long == []
    architecture = (docs / "architecture.md").read_text(encoding="utf-8")
    _, _, section = architecture.partition("## Where do I change X?")
    table = re.findall(r"^\| (?!to change)", section.partition("\n## ")[0], re.M)
    assert 0 < len(table) <= 25


def _pages_of(nav: list[Any]) -> list[str]:
    """Return the pages of a navigation with nested sections."""
    pages = []
    for entry in nav:
        if isinstance(entry, str):
            pages.append(entry)
            continue
        for section in entry.values():
            pages += _pages_of(section)
    return pages


def test_the_site_leads_to_every_page(repository: Path) -> None:
    """`make docs` checks links and API names, but not pages missing from the navigation."""
    site = yaml.safe_load((repository / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = _pages_of(site["nav"])
    docs = repository / "docs"
    assert sorted(listed) == sorted(
        page.relative_to(docs).as_posix() for page in docs.rglob("*.md")
    )


def _documented_commands(repository: Path) -> list[list[str]]:
    """Return the words of every ``scimult`` command in a code block of a page."""
    commands = []
    for page in _pages(repository):
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            lines = block.replace("\\\n", " ").splitlines()
            commands += [
                shlex.split(line, comments=True) for line in lines if line[:8] == "scimult "
            ]
    return commands


def test_examples_in_docstrings_are_true(repository: Path) -> None:
    examples = failures = 0
    for path in (repository / "scimult").rglob("*.py"):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(repository).with_suffix("").parts)
            found = doctest.testmod(import_module(name))
            examples += found.attempted
            failures += found.failed
    assert examples
    assert not failures


def test_documented_commands_exist(repository: Path) -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands = _documented_commands(repository)
    assert {"prepare", "evaluate", "search", "recommend", "tag"} <= {words[1] for words in commands}
    for _, verb, *words in commands:
        # Of a group, such as library, the verb in it has the options.
        chosen = verbs[verb].commands[words[0]] if hasattr(verbs[verb], "commands") else verbs[verb]
        known = {option for param in chosen.params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= known, (verb, words)
        needed = [param for param in chosen.params if param.required and param.opts[0][0] == "-"]
        missing = [param.name for param in needed if not set(param.opts) & set(words)]
        assert "..." in words or not missing, (verb, words, missing)


def test_the_page_of_architecture_has_every_verb(repository: Path) -> None:
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|", page.partition("## Layers")[0], re.M)
    named = set(re.findall(r"`(?:scimult )?([\w-]+)", "\n".join(rows)))
    assert typer.main.get_command(app).commands.keys() - named == set()  # type: ignore[attr-defined]


def test_ci_script_can_be_run(repository: Path) -> None:
    assert os.access(repository / ".ci" / "run", os.X_OK)
