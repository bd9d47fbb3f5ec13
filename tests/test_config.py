from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from scimult.config import (
    StrictConfig,
    apply_overrides,
    load_config,
    merge,
    read_yaml,
    save_config,
    string_override,
    validate,
    yaml_text,
)
from scimult.errors import ConfigError


class Optimizer(StrictConfig):
    lr: float = Field(default=1e-3, gt=0)
    warmup_steps: int = 0
    schedule: Literal["linear", "cosine"] = "linear"


class Source(StrictConfig):
    name: str
    papers: Path | None = None


class Job(StrictConfig):
    seed: int = 1
    optimizer: Optimizer = Optimizer()
    sources: list[Source] = []
    rates: dict[str, Source] = {}
    total_steps: int | None = None
    words: list[str] = []
    cap: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    shown: bool | list[str] = False
    shares: dict[Literal["train", "dev"], float] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        if self.total_steps is not None and self.optimizer.warmup_steps > self.total_steps:
            raise ValueError("optimizer.warmup_steps exceeds total_steps")
        return self


def _write(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_file_then_overrides(tmp_path: Path) -> None:
    path = _write(tmp_path, "seed: 3\noptimizer: {lr: 3e-4, warmup_steps: 5}\n")
    job = load_config(Job, path, ["optimizer.lr=1E-5", "optimizer.schedule=cosine"])
    assert job.seed == 3
    assert job.optimizer == Optimizer(lr=1e-5, warmup_steps=5, schedule="cosine")


@pytest.mark.parametrize("text", ["3e-4", "3E-4", "3.0e-4", "+3e-4", "0.0003"])
def test_every_spelling_of_a_float_is_a_float(tmp_path: Path, text: str) -> None:
    path = _write(tmp_path, f"optimizer: {{lr: {text}}}")
    assert load_config(Job, path).optimizer.lr == pytest.approx(3e-4)


def test_infinity_is_no_setting() -> None:
    """Also where no file is read, and none of YAML's words for it is refused."""
    for value in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="finite number"):
            Optimizer(lr=value)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load_config(Job, _write(tmp_path, "")) == Job()


def test_overrides_are_yaml(tmp_path: Path) -> None:
    path = _write(tmp_path, "")
    job = load_config(Job, path, ["sources=[{name: a}, {name: b}]", "total_steps=null"])
    assert [source.name for source in job.sources] == ["a", "b"]
    assert job.total_steps is None


def test_override_fills_a_section_left_empty(tmp_path: Path) -> None:
    path = _write(tmp_path, "optimizer:\n")
    assert load_config(Job, path, ["optimizer.lr=1"]).optimizer.lr == 1


def test_a_key_with_dots_is_overridden_as_a_whole() -> None:
    """Such as a data set called by its version; other keys are still made section by section."""
    tree = {"sets": {"v1": {"k": 1}, "v1.0": {"k": 1}, "v1.0.b": 3, 1: {}}}
    overrides = ["sets.v1.0.k=2", "sets.v1.1.k=3", "sets.v1.0.b=4", "sets.v1.0.c.d=5", "sets.1.k=6"]
    assert apply_overrides(tree, overrides) == {
        "sets": {
            "v1": {"k": 1, "1": {"k": 3}},
            "v1.0": {"k": 2, "c": {"d": 5}},
            "v1.0.b": 4,
            1: {},
            "1": {"k": 6},
        }
    }


def test_includes_merge_in_order_and_the_file_wins(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    _write(tmp_path, "seed: 1\noptimizer: {lr: 1, warmup_steps: 1}", "parts/a.yaml")
    _write(tmp_path, "optimizer: {lr: 2}", "parts/b.yaml")
    path = _write(tmp_path, "include: [parts/a.yaml, parts/b.yaml]\noptimizer: {schedule: cosine}")
    job = load_config(Job, path)
    assert job.optimizer == Optimizer(lr=2, warmup_steps=1, schedule="cosine")


def test_included_files_include_relative_to_themselves(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    _write(tmp_path, "seed: 9", "parts/base.yaml")
    _write(tmp_path, "include: base.yaml", "parts/middle.yaml")
    assert load_config(Job, _write(tmp_path, "include: parts/middle.yaml")).seed == 9


def test_a_cycle_of_includes_is_named(tmp_path: Path) -> None:
    _write(tmp_path, "include: b.yaml", "a.yaml")
    path = _write(tmp_path, "include: a.yaml", "b.yaml")
    with pytest.raises(ConfigError, match="includes itself"):
        load_config(Job, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sede: 1",
            r"sede: unknown key \(did you mean 'seed'\?\); known keys: cap, optimizer, rates",
        ),
        (
            "optimizer: {lrr: 1}",
            r"optimizer\.lrr: unknown key \(did you mean 'lr'\?\); known keys: lr",
        ),
        ("sources: [{name: a}, {nmae: b}]", r"sources\.1\.nmae: unknown key \(did you mean 'name'"),
        (
            "rates: {x: {name: a, paper: b}}",
            r"rates\.x\.paper: unknown key \(did you mean 'papers'",
        ),
        ("sources: [{papers: b}]", r"sources\.0\.name: Field required"),
        ("seed: many", r"seed: .*valid integer.*\(value: 'many'\)"),
        ("optimizer: {lr: -1}", r"optimizer\.lr: .*greater than 0 \(value: -1\)"),
        ("optimizer: {schedule: step}", r"optimizer\.schedule: .*'linear' or 'cosine'.*'step'"),
        ("optimizer: 3", r"optimizer: Input should be a mapping of keys to values \(value: 3\)"),
        (
            "{total_steps: 1, optimizer: {warmup_steps: 2}}",
            r":\n  optimizer\.warmup_steps exceeds total_steps",
        ),
        ("- a\n- b", r"expected a mapping"),
        ("seed: [", r"not a valid YAML file"),
        ("seed: 1\nseed: 2", r"yaml:2: .*duplicate key 'seed'"),
        ("include: 3", r"include is not a file name"),
        ("include: missing.yaml", r"missing\.yaml: file does not exist"),
        ("include: job.yaml/more.yaml", r"job\.yaml/more\.yaml: cannot read: Not a directory"),
        ("seed: 1\noptimizer:\n  lr: .inf", r"yaml:3: .*\.inf is not a finite number"),
        ("optimizer: {lr: 1e400}", r"1e400 is not a finite number"),
    ],
)
def test_bad_files_give_one_clear_message(tmp_path: Path, text: str, message: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(Job, path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "not key=value.*Fix: write dotted.key=value, all of it in quotes if"),
        ("=3", "not key=value"),
        ("seed.deep=3", "goes below 'seed', which is a value"),
        ("optimizer.lr.max=3", r"goes below 'lr'.*Fix: .*value: optimizer\.lr=\.\.\."),
        ("optimizer.lr=fast", r"optimizer\.lr: .*valid number.*'fast'"),
        ("optimizer.lrr=1", "did you mean 'lr'"),
        ("seed=[1", "not valid YAML"),
        ("words=`a` b", "not valid YAML.*two pairs of quotes: \"words='...'\"$"),
        ("words=beta", r"words: .*valid list, such as \[beta\] \(value: 'beta'\)$"),
        ("words=3", r"words: Input should be a valid list \(value: 3\)$"),
        ("optimizer.schedule=cosin", r"'cosin'\) \(did you mean 'cosine'\?\)$"),
        (
            "cap=al",
            r":\n  cap: Input should be a valid integer, .*, or 'all' \(value: 'al'\) \(did",
        ),
        ("cap=0", r":\n  cap: .*greater than or equal to 1, or 'all' \(value: 0\)$"),
        (
            "shown=[1]",
            r":\n  shown: .* boolean \(value: \[1\]\)\n  shown\.0: .*string.* \(value: 1\)$",
        ),
        ("shares={tain: 1}", r"shares\.tain: Key should be 'train' .*\(did you mean 'train'\?\)$"),
        ("rates={int: 3, b: 3}", r":\n  rates\.int: .*\n  rates\.b: "),
        ("optimizer.lr=.nan", r"\.nan is not a finite number"),
    ],
)
def test_bad_overrides_give_one_clear_message(tmp_path: Path, override: str, message: str) -> None:
    path = _write(tmp_path, "seed: 1\noptimizer: {lr: 1}")
    with pytest.raises(ConfigError, match=message):
        load_config(Job, path, [override])


def test_a_key_may_override_a_merged_one(tmp_path: Path) -> None:
    text = """
x: &fast {lr: 3, warmup_steps: 5}
nested:
  slow: &slow
    <<: *fast
    lr: 2
optimizer:
  <<: *slow
"""
    tree = read_yaml(_write(tmp_path, text))
    assert tree["optimizer"] == tree["nested"]["slow"] == {"lr": 2, "warmup_steps": 5}


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Job, {"seed": "x", "optimizer": {"lr": "y"}, "extra": 1})
    assert all(key in str(caught.value) for key in ("seed:", "optimizer.lr:", "extra:"))


@pytest.mark.parametrize("what", ["a folder", "missing", "not UTF-8"])
def test_unreadable_files(tmp_path: Path, what: str) -> None:
    path = tmp_path / "job.yaml"
    if what == "a folder":
        path.mkdir()
    elif what == "not UTF-8":
        path.write_bytes(b"seed: \xff\xfe")
    with pytest.raises(ConfigError, match=r"job\.yaml"):
        load_config(Job, path)


def test_assignments_are_checked_too() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Job().optimizer.lr = -1


def test_a_saved_config_loads_to_the_same(tmp_path: Path) -> None:
    job = Job(seed=4, sources=[Source(name="Ångström", papers=Path("a/b.jsonl"))])
    save_config(job, tmp_path / "run" / "config.yaml")
    assert load_config(Job, tmp_path / "run" / "config.yaml") == job


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = "[010, 0908, -0x1f, 1_000, 3e-4, +.5, 5., 12:30, 1:2:3.5, 2024-01-01, 0o10, =, 1.2.3]"
    tree = read_yaml(_write(tmp_path, f"values: {text}"))
    words = ["12:30", "1:2:3.5", "2024-01-01", "0o10", "=", "1.2.3"]
    assert tree["values"] == [10, 908, -31, 1000, 3e-4, 0.5, 5.0, *words]


def test_words_that_look_like_numbers_are_saved_as_words(tmp_path: Path) -> None:
    """A source or a commit may be called so; other libraries read the file, too."""
    words = ["1e5", "12e4567", "010", "0908", "12:30", "yes", "null", "=", "", "1_0", "~", ".5e1"]
    text = yaml_text({"sources": words})
    assert read_yaml(_write(tmp_path, text))["sources"] == words
    assert yaml.safe_load(text)["sources"] == words


def test_a_word_that_yaml_reads_as_something_else_wants_quotes(tmp_path: Path) -> None:
    path = _write(tmp_path, "sources: [{name: no, papers: a.jsonl}]")
    with pytest.raises(ConfigError, match=r"sources\.0\.name: .* in quotes \(value: False\)"):
        load_config(Job, path)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("seed=true", "seed"),
        ("total_steps=false", "total_steps"),
        ("optimizer.lr=true", "optimizer: lr"),
        ("shares={a: true}", "shares"),
        ("shares={a: 1, b: [2, false]}", "shares"),
    ],
)
def test_true_is_no_number(tmp_path: Path, override: str, key: str) -> None:
    class Shared(Job):
        shares: dict[str, float | list[int]] = {}
        either: bool | int = 3

    path = _write(tmp_path, "either: true")
    assert load_config(Shared, path).either is True
    with pytest.raises(ConfigError, match=f"{key} should be a number, not true or false"):
        load_config(Shared, path, [override])


_BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("? [a, b]\n: 1\n", "a key is a list or a mapping"),
        ("? {a: b}\n: 1\n", "a key is a list or a mapping"),
        ("seed: " + "9" * 5000, "Exceeds the limit"),
        ("sources: " + "[" * 3000, "nested too deeply"),
        (_BOMB + "sources: *a29\n", "expand to too many values"),
        ("sources: &s [*s]\n", "expand to too many values"),
        ("seed: !!timestamp 2024-99-99\n", "month must be in"),
        ("seed: 2024-99-99\n", "seed: Input should be a valid integer"),
        ("1: x\n", "1"),
        ("null: x\n", "None"),
        ("sources: [" + "1, " * 500 + "1]", "and 481 more"),
    ],
)
def test_hostile_yaml_is_an_error_of_few_words(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"job\.yaml") as caught:
        load_config(Job, _write(tmp_path, text))
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_hostile_overrides_are_errors_of_few_words(tmp_path: Path) -> None:
    path = _write(tmp_path, "seed: 1")
    for value in ("? [a]", "9" * 5000, "[" * 3000, "!!timestamp 2024-99-99"):
        with pytest.raises(ConfigError, match="override is not valid YAML") as caught:
            load_config(Job, path, [f"seed={value}"])
        assert len(str(caught.value)) < 500


@given(st.text())
@example("runs/study #1/runs/a")
@example("runs/a: b")
@example("010")
@example("null")
@example("*.csv")
@example("|")
def test_an_override_of_a_text_is_that_text(text: str) -> None:
    assume(text.isprintable())
    assert apply_overrides({}, [string_override("a.b", text)]) == {"a": {"b": text}}


def test_an_override_of_a_plain_path_has_no_quotes() -> None:
    assert string_override("output", "runs/é (1)/a-seed0") == "output=runs/é (1)/a-seed0"


def test_a_glob_is_a_string(tmp_path: Path) -> None:
    assert apply_overrides({}, ["papers.file=*.gz"]) == {"papers": {"file": "*.gz"}}
    plain = {"a": {"separator": "|"}, "b": ">", "c": ","}
    assert apply_overrides({}, ["a.separator=|", "b=>", "c=,"]) == plain


def test_aliases_that_share_a_little_are_read(tmp_path: Path) -> None:
    text = "optimizer: &o {lr: 0.1}\nsources: [&s {name: a}, *s, {<<: *s, name: b}]\n"
    assert [one.name for one in load_config(Job, _write(tmp_path, text)).sources] == list("aab")


def test_an_override_changes_one_of_two_places_that_share_an_alias(tmp_path: Path) -> None:
    base = "a: &x {k: 1, deep: {l: 2}}\nb: *x\nc: [*x]\nd: {<<: *x}\n"
    (tmp_path / "base.yaml").write_text(base)
    top = _write(tmp_path, "include: base.yaml\na: {deep: {l: 3}}\n")
    plain = {"k": 1, "deep": {"l": 2}}
    assert read_yaml(top) == {"a": {"k": 1, "deep": {"l": 3}}, "b": plain, "c": [plain], "d": plain}
    tree = read_yaml(tmp_path / "base.yaml")
    assert apply_overrides(tree, ["b.k=5"]) == {**tree, "b": {**plain, "k": 5}}
    assert merge(tree, {"b": {"k": 5}}) == {**tree, "b": {**plain, "k": 5}}
