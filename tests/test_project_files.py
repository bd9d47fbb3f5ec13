"""Project files: workflows, templates, version, changelog, Docker."""

from __future__ import annotations

import ast
import configparser
import inspect
import re
import shlex
import textwrap
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import duckdb
import pytest
import yaml
from hypothesis import settings
from pydantic import TypeAdapter

import scimult
from scimult.cli.main import app
from scimult.config import validate
from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.evaluation.datasets import FORMATS, read_dataset
from scimult.evaluation.suites import load_suite
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.mining import config as configs
from scimult.preparation.mining import plans, rules
from scimult.preparation.mining.engine import DuckDBEngine
from scimult.preparation.sources import SOURCES
from tests.preparation.mining import naive, test_plans
from tests.public import write_files

REPOSITORY = Path(__file__).resolve().parent.parent
GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _classified_versions() -> list[str]:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    return re.findall(r"Python :: (3\.\d+)", settings["metadata"]["classifiers"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_make_targets_that_exist(path: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.M))
    jobs = _yaml(path)["jobs"]
    assert jobs
    for job in jobs.values():
        commands = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
        assert commands
        assert all(words[0] == "make" and set(words[1:]) <= targets for words in commands)
        assert job["steps"][0]["uses"].startswith("actions/checkout@")


def test_workflows_take_the_oldest_and_newest_python() -> None:
    known = _classified_versions()
    matrix = _yaml(GITHUB / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == [known[0], known[-1]]


def test_makefile_names_its_targets() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.M)
    assert set(phony.split()) == set(re.findall(r"^([a-z]+):", makefile, re.M))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_complete(path: Path) -> None:
    form = _yaml(path)
    assert {"name", "description", "body"} <= form.keys()
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    assert all(field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_bug_reports_ask_for_the_version() -> None:
    assert "scimult --version" in (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8")


def test_hooks_are_pinned() -> None:
    hooks = {
        hook["id"]: source["rev"]
        for source in _yaml(REPOSITORY / ".pre-commit-config.yaml")["repos"]
        for hook in source["hooks"]
    }
    assert hooks.keys() == {"ruff-check", "ruff-format", "codespell"}
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", rev) for rev in hooks.values())


def test_version_changelog_and_citation_agree() -> None:
    log = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\] - (unreleased|\d{4}-\d\d-\d\d)$", log, re.M)
    assert len(headings) == len(re.findall(r"^## ", log, re.M))
    assert headings[0][0] == scimult.__version__
    assert all(date != "unreleased" for _, date in headings[1:])
    assert _yaml(REPOSITORY / "CITATION.cff")["version"] == scimult.__version__


def test_every_recipe_is_on_the_contributors_page() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipes = sorted((REPOSITORY / "docs" / "contributing").glob("*.md"))
    assert len(recipes) == 7
    assert all(f"docs/contributing/{recipe.name}" in page for recipe in recipes)
    assert all(len(recipe.read_text("utf-8").splitlines()) <= 110 for recipe in recipes)


PYTHON = [
    pytest.param(path.stem, number, id=f"{path.stem} {number}")
    for path in sorted((REPOSITORY / "docs" / "contributing").glob("*.md"))
    for number in range(len(re.findall(r"^ *```python$", path.read_text("utf-8"), re.M)))
]


@pytest.mark.parametrize(("page", "number"), PYTHON)
def test_code_of_recipes_imports_what_exists(page: str, number: int) -> None:
    """Modules and functions named in recipes exist, so that a rename must update them."""
    tree = ast.parse(_blocks(page)[number])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            exec(compile(ast.Module([node], type_ignores=[]), page, "exec"), {})


def _blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of code of a recipe."""
    text = (REPOSITORY / "docs" / "contributing" / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.S | re.M)
    return [textwrap.dedent(block) for block in found]


def test_the_recipe_of_a_source_does_what_its_test_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, test = _executed("source")
    monkeypatch.setitem(SOURCES, "items", module["ITEMS"])
    test["test_items_become_papers_labels_and_citations"](tmp_path)


def test_the_recipe_of_a_rule_does_what_its_test_says(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, options, case, test = _blocks("rule")
    inserted = textwrap.dedent(inspect.getsource(rules.RuleBuilder._rule))
    end = "    raise AssertionError(rule)"
    inserted = inserted.replace(end, textwrap.indent(case.partition("\n")[2], " " * 4) + end)
    of_test = {"sample": naive.sample, "quickly": settings(max_examples=2)}
    for module, code in ((plans, plan), (configs, options), (rules, inserted), (test_plans, test)):
        names = {**vars(module), **(of_test if module is test_plans else {})}
        exec(code, names)
        for name, value in names.items():
            monkeypatch.setattr(module, name, value, raising=False)
    (rule,) = TypeAdapter(configs.PaperRules).validate_python(["citing"])
    builder = MagicMock(_config=configs.MiningConfig(max_neighbours=7))
    found = rules._rule(builder, rule, MagicMock(), 0, 3)  # type: ignore[attr-defined]
    assert found == plans.citing(7, 3)  # type: ignore[attr-defined]
    assert [name for name, *_ in builder._tables.method_calls] == ["edges"]
    with closing(duckdb.connect(config={"threads": 1})) as connection:
        test_plans.test_citing(DuckDBEngine(connection))  # type: ignore[attr-defined]


def test_the_recipe_of_a_task_trains_it(tmp_path: Path) -> None:
    files = {
        "papers.jsonl": [{"id": name, "title": name, "abstract": ""} for name in "abc"],
        "links.tsv": "query-id\tpaper-id\tscore\na\tb\t1\na\tc\t0\n",
    }
    (config,) = _blocks("task", "yaml")
    tree = {**yaml.safe_load(config), "root": str(write_files(tmp_path, files)), "dev_fraction": 0}
    data, _ = build_dataset(validate(DatasetConfig, tree), tmp_path / "out")
    assert [(file.task, len(file.queries)) for file in data.pairs("train")] == [
        ("reviewer_matching", 1)
    ]


def test_the_recipe_of_a_verb_does_what_its_test_says(monkeypatch: pytest.MonkeyPatch) -> None:
    verb, test = _executed("verb")
    monkeypatch.setattr(app, "registered_commands", [])
    app.command("tasks")(verb["tasks"])
    test["test_tasks_are_listed"]()


def test_the_recipe_of_a_benchmark_reads_what_it_describes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (described,) = _blocks("benchmark", "yaml")
    (tmp_path / "toy.yaml").write_text(described, encoding="utf-8")
    entry = load_suite(str(tmp_path / "toy.yaml")).benchmarks["toy_search"]
    (reader,) = _executed("benchmark")
    monkeypatch.setitem(FORMATS, "docs", SimpleNamespace(**reader))
    benchmark = entry.model_copy(update={"format": "docs", "expected": None})
    files = {
        "docs.jsonl": '{"docno": "a", "title": "A"}\n{"docno": "b", "abstract": "B"}\n',
        "topics.jsonl": '{"num": 1, "text": "which"}\n',
        "judged.tsv": "query-id\tcorpus-id\tscore\n1\tb\t2\n",
    }
    (tmp_path / "toy").mkdir()
    for name, content in files.items():
        (tmp_path / "toy" / name).write_text(content, encoding="utf-8")
    read = read_dataset("toy", benchmark, tmp_path, "", Rejects())
    assert read.counts == {"queries": 1, "candidates": 2, "relevant": 1}
    (tmp_path / "toy" / "judged.tsv").write_text(files["judged.tsv"].replace("b", "c"))
    with pytest.raises(DataError, match=r"judged.tsv:2: document of a pair has no text.*'c'"):
        read_dataset("toy", benchmark, tmp_path, "", Rejects())


def _executed(page: str) -> list[dict[str, Any]]:
    modules: list[dict[str, Any]] = []
    for number, block in enumerate(_blocks(page)):
        modules.append({"__name__": f"{page}_{number}"})
        exec(block, modules[-1])
    return modules


def test_names_in_recipes_stand_in_the_code() -> None:
    """Private names, constants, classes and tests exist, or an example's blocks add them."""
    files = [path for room in ("scimult", "tests") for path in (REPOSITORY / room).rglob("*.py")]
    code = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in files)))
    block = re.compile(r"^ *```.*?^ *```", re.S | re.M)
    found = 0
    for path in sorted((REPOSITORY / "docs" / "contributing").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        names = set(re.findall(r"`(_\w+|[A-Z]\w+|test_\w+)(?:\.\w+)?`", block.sub("", text)))
        own = set(re.findall(r"\w+", "\n".join(block.findall(text))))
        assert names - code - own == set(), path.name
        found += len(names)
    assert found > 40


def test_docker_copies_what_exists_and_nothing_else_is_sent() -> None:
    lines = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    steps = [line.split() for line in lines if line and not line.startswith("#")]
    copied = {name for step in steps if step[0] == "COPY" for name in step[1:-1]}
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((REPOSITORY / name).exists() for name in copied)
    assert [step[1] for step in steps if step[0] == "USER"] == ["scimult"]
    assert 'ENTRYPOINT ["scimult"]' in lines
    # The allocator is preloaded as the page on performance says.
    advice = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    for words in ("libtcmalloc-minimal4", "LD_PRELOAD=libtcmalloc_minimal.so.4"):
        assert any(words in line for line in lines)
        assert words in advice
    python = next(step[1] for step in steps if step[0] == "FROM")
    assert python.removeprefix("python:").removesuffix("-slim") in _classified_versions()


def test_torch_is_the_same_everywhere() -> None:
    files = (
        "Makefile",
        "Dockerfile",
        "Dockerfile.serve",
        ".github/workflows/tests.yml",
        ".github/workflows/slow.yml",
    )
    found = {
        name: set(re.findall(r"torch==[\d.]+", (REPOSITORY / name).read_text("utf-8")))
        for name in files
    }
    assert len(set.union(*found.values())) == 1
    assert all(found.values())


def test_the_readme_names_extras_that_exist() -> None:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"Further extras: (.*?)\. ", readme, re.S)
    assert set(re.findall(r"`(\w+)`", named)) <= settings["options.extras_require"].keys()
