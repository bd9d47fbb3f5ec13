"""Published numbers: complete, consistent, and shown next to ours only for the same data."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from scimult.evaluation.mteb_suite import NAME as MTEB
from scimult.evaluation.mteb_suite import as_ours
from scimult.evaluation.reporting.published import (
    AVERAGE,
    Publication,
    PublishedTable,
    beside_ours,
    publications,
)
from scimult.evaluation.results import load_results
from scimult.evaluation.suites import load_suite, suite_names
from tests.evaluation.reporting.scored import write_results

TABLES = [(paper, table) for paper in publications() for table in paper.tables]


@pytest.mark.parametrize(
    ("paper", "table"),
    TABLES,
    ids=[f"{paper.paper.split()[0]} {table.name}" for paper, table in TABLES],
)
def test_printed_averages_are_those_of_their_columns(
    paper: Publication, table: PublishedTable
) -> None:
    """A wrong digit would show: columns and average have two decimals, so within 0.0101."""
    assert set(table.cited) <= table.rows.keys()
    if AVERAGE not in table.columns or not table.mean:
        return
    place = table.columns.index(AVERAGE)
    checked = 0
    for system, scores in table.rows.items():
        rest = [score for at, score in enumerate(scores) if at != place]
        if scores[place] is not None and None not in rest:
            mean = sum(score for score in rest if score is not None) / len(rest)
            assert mean == pytest.approx(scores[place], abs=0.0101), (paper.paper, system)
            checked += 1
    assert checked > 10


CHANGES = {
    "Table 3": {"MHAExpert": 3.15, "FFNExpert": -0.95, "Prefix": -0.51, "Instruction": 0.68},
    "Table 4": {"MHAExpert": 1.02, "FFNExpert": 0.33, "Prefix": 1.50, "Instruction": 0.93},
    "Table 5": {"MHAExpert": 4.06, "FFNExpert": 4.91, "Prefix": 3.46, "Instruction": 0.95},
    "Table 7": {"MHAExpert": 0.07, "FFNExpert": -0.37, "Prefix": -0.08, "Instruction": -0.95},
    "Table 8": {"MHAExpert": 0.86, "FFNExpert": -9.28, "Prefix": -1.25, "Instruction": -3.32},
}
"""Table 9 of the SciMult paper, per cent."""


@pytest.mark.parametrize("name", CHANGES)
def test_relative_changes_are_those_of_table_9(name: str) -> None:
    """Averages with two decimals give changes within 0.02."""
    (table,) = [t for paper, t in TABLES if t.name == name and "Zhang" in paper.paper]
    averages = {system: scores[-1] or 0.0 for system, scores in table.rows.items()}
    vanilla = averages["SciMult-Vanilla"]
    for variant, printed in CHANGES[name].items():
        change = (averages[f"SciMult-{variant}"] - vanilla) / vanilla
        assert 100 * change == pytest.approx(printed, abs=0.02)


# Relative changes of BEIR, SciDocs and ICLR 2022 that Parisot and Zavrel print in their Table 1.
GAINS = {
    ("Table 3", "ICrop, then unarXiv context2doc", "MS MARCO"): (5.6, 13.9, 73.1),
    ("Table 3", "ICrop, then unarXiv context2doc", "SPECTER"): (37.7, -1.8, 10.6),
    ("Table 2", "all three, alternate", "MS MARCO"): (3.0, 15.6, 63.1),
    ("Table 2", "all three, alternate", "SPECTER"): (34.3, -0.4, 4.2),
}


@pytest.mark.parametrize(("table", "system", "over"), GAINS)
def test_relative_gains_are_those_of_the_first_table(table: str, system: str, over: str) -> None:
    """Scores of three digits give gains within 0.15."""
    (paper,) = [paper for paper in publications() if "Parisot" in paper.paper]
    tables = {table.name: table.rows for table in paper.tables}
    ours, base = tables[table][system], tables["Table 3"][over]
    for score, other, printed in zip(ours, base, GAINS[table, system, over], strict=True):
        assert score is not None
        assert other is not None
        assert 100 * (score - other) / other == pytest.approx(printed, abs=0.15)


def _paper(queries: int) -> Publication:
    table = PublishedTable(
        name="Table 1",
        title="made up",
        columns=["tiny:search/ndcg@10", "other:search/ndcg@10"],
        rows={"theirs": [50.0, None]},
    )
    counts = {"tiny:search": {"queries": queries}}
    return Publication(paper="P", url="u", counts=counts, tables=[table])


def test_only_data_sets_of_the_same_size_stand_beside_each_other(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    results = load_results(out)
    (same,) = beside_ours(results, [_paper(3)])
    assert same.headings == ["system", "search/ndcg@10"]
    assert [row[0].text for row in same.rows] == ["theirs", "ours: BM25", "ours: words"]
    values = [row[1].value for row in same.rows]
    assert values == [0.5, *(result.sets["search"].scores["ndcg@10"] for result in results)]
    (other,) = beside_ours(results, [_paper(4)])
    assert other.headings == ["system"]
    assert "other sizes: tiny:search" in other.notes[-1]
    assert beside_ours(results, publications()) == []


def test_notes_name_what_a_paper_took_from_others_and_does_not_state(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    results, paper = load_results(out), _paper(3)
    (plain,) = beside_ours(results, [paper])
    assert plain.notes == ["P, Table 1 (u): made up."]
    cited = paper.tables[0].model_copy(update={"cited": ["theirs"]})
    (noted,) = beside_ours(results, [paper.model_copy(update={"tables": [cited], "counts": {}})])
    assert noted.notes[1:] == [
        "Partly from other papers: theirs.",
        "The paper does not state the sizes of tiny:search.",
    ]


def test_a_published_row_has_a_score_per_column() -> None:
    with pytest.raises(ValidationError, match=r"Table 1 needs one score per column .*short"):
        PublishedTable(name="Table 1", title="t", columns=["a", "b"], rows={"short": [1.0]})


def test_the_same_data_in_another_suite_stands_beside_it_too(tmp_path: Path) -> None:
    """Rows without a number in any shown column are left out; sizes must match all the same."""
    out, _ = write_results(tmp_path, save_runs=False)
    results = load_results(out)
    table = PublishedTable(
        name="Table 1",
        title="made up",
        columns=["theirs:other/map", "theirs:ask/ndcg@10"],
        rows={"one": [60.0, None], "two": [None, 40.0]},
    )
    paper = Publication(
        paper="P",
        url="u",
        counts={"theirs:ask": {"queries": 3}},
        same={"tiny:search": "theirs:ask"},
        tables=[table],
    )
    (beside,) = beside_ours(results, [paper])
    assert beside.headings == ["system", "search/ndcg@10"]
    assert [row[0].text for row in beside.rows] == ["two", "ours: BM25", "ours: words"]
    other = paper.model_copy(update={"counts": {"theirs:ask": {"queries": 4}}})
    assert "other sizes: tiny:search" in beside_ours(results, [other])[0].notes[-1]


@pytest.mark.parametrize("paper", publications(), ids=lambda paper: paper.paper[:20])
def test_sets_named_the_same_are_of_suites_and_have_the_measures(paper: Publication) -> None:
    for ours, theirs in paper.same.items():
        suite, _, name = ours.partition(":")
        metrics = load_suite(suite).benchmarks[name].metrics
        columns = [c for table in paper.tables for c in table.columns if c.startswith(f"{theirs}/")]
        assert columns
        assert {column.rpartition("/")[2] for column in columns} <= set(metrics)


@pytest.mark.parametrize("paper", publications(), ids=lambda paper: paper.paper[:20])
def test_sizes_of_published_sets_are_those_that_suites_expect(paper: Publication) -> None:
    """They are in two files: one refuses other data, the other leaves out its rows."""
    for name, counts in paper.counts.items():
        suite, _, benchmark = name.partition(":")
        if suite == MTEB:
            continue  # below
        assert suite in suite_names()
        expected = load_suite(suite).benchmarks[benchmark].expected
        if expected is not None:
            known = {key: n for key, n in expected.model_dump().items() if n is not None}
            shared = known.keys() & counts.keys()
            assert {key: known[key] for key in shared} == {key: counts[key] for key in shared}


def test_columns_of_mteb_are_its_tasks_with_their_main_measures() -> None:
    """Including superseded tasks: old results keep their names."""
    import mteb

    columns = [column for _, table in TABLES for column in table.columns if f"{MTEB}:" in column]
    assert len(columns) > 10
    for column in columns:
        name, _, measure = column.removeprefix(f"{MTEB}:").rpartition("/")
        assert measure == as_ours(mteb.get_task(name).metadata.main_score), column
    for paper, _ in TABLES:
        for key, counts in paper.counts.items():
            if key.startswith(f"{MTEB}:"):
                sizes = mteb.get_task(key.partition(":")[2]).metadata.descriptive_stats["test"]
                assert sizes["queries_text_statistics"]["unique_texts"] == counts["queries"]


def _table(paper: str) -> PublishedTable:
    [table] = [table for publication, table in TABLES if paper in publication.paper]
    return table


def test_the_transcription_of_beir_agrees_with_anserini() -> None:
    """BEIR's BM25 is Lucene's with two fields, as its paper says: four sets match to 3 digits."""
    beir, anserini = _table("Thakur"), _table("Anserini")
    reproduced = dict(zip(anserini.columns, next(iter(anserini.rows.values())), strict=True))
    for column, printed in zip(beir.columns, beir.rows["BM25"], strict=True):
        assert reproduced[column] == pytest.approx(printed, abs=0.05001)


def test_scidocs_averages_are_those_of_their_columns() -> None:
    """Columns and average are printed with one decimal."""
    table = _table("SciNCL")
    checked = 0
    for scores in table.rows.values():
        *rest, average = (score for score in scores if score is not None)
        if len(rest) == len(table.columns) - 1:
            assert sum(rest) / len(rest) == pytest.approx(average, abs=0.1001)
            checked += 1
    assert checked == 7
    exact = table.rows["SPECTER (its authors' README)"]
    for one, other in zip(table.rows["SPECTER"], exact[:-1], strict=False):
        assert one == pytest.approx(other, abs=0.0501)


IN_AND_OUT = ["in-train", "out-of-train", "average"]


@pytest.mark.parametrize(
    "table",
    [table for _, table in TABLES if table.columns == IN_AND_OUT],
    ids=lambda table: table.name,
)
def test_averages_over_data_sets_have_the_same_weights_in_every_row(table: PublishedTable) -> None:
    """The average weights more sets out of training than in it: one share fits all rows."""
    rows = [[score for score in row if score is not None] for row in table.rows.values()]
    gaps = [(inside - outside, average - outside) for inside, outside, average in rows]
    share = sum(x * y for x, y in gaps) / sum(x * x for x, _ in gaps)
    assert 0.1 < share < 0.4
    for inside, outside, average in rows:
        assert share * inside + (1 - share) * outside == pytest.approx(average, abs=0.11)


def test_averages_of_fields_are_those_of_the_table_of_all() -> None:
    """MDCR by field (Table 10) averages to Table 5 of the SciRepEval paper."""
    tables = {table.name: table for _, table in TABLES}
    for column, name in enumerate(("Table 10, MAP", "Table 10, R@5")):
        assert len(tables[name].columns) == 20
        for system, scores in tables[name].rows.items():
            [whole] = [
                t.rows[system]
                for _, t in TABLES
                if t.columns[0] == "mdcr:mdcr/map" and system in t.rows
            ]
            assert scores[-1] == whole[column]
            fields = [score for score in scores[:-1] if score is not None]
            assert sum(fields) / 19 == pytest.approx(scores[-1], abs=0.1001)


def test_formats_trained_on_give_the_models_of_the_table_of_averages() -> None:
    """The last row of the study of formats is the model with control codes, in both versions."""
    for paper, study in (("Singh et al. 2023", "Appendix H"), ("Singh et al. 2022", "Table 9")):
        tables = {t.name: t for publication, t in TABLES if paper in publication.paper}
        row = dict(zip(tables[study].columns, tables[study].rows["all formats"], strict=True))
        averages = next(rows for name, rows in tables["Table 2"].rows.items() if "CTRL" in name)
        assert row["in-train average"] == pytest.approx(averages[0], abs=0.31)
        assert row["out-of-train average"] == pytest.approx(averages[1], abs=0.31)
        assert row["average"] == pytest.approx(averages[-1], abs=0.11)
