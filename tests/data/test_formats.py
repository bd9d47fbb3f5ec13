"""Files of other formats in place of JSON lines: the error has the command that reads them."""

from __future__ import annotations

import gzip
import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from scimult.data import formats
from scimult.data.lines import read_jsonl
from scimult.data.records import Rejects
from scimult.errors import DataError
from tests.command import completed
from tests.data.importers import layouts

ZOTERO = '\ufeff"Key","Item Type","Title","Abstract Note"\n"K1","article","A, b","Of\n\nb"\n'


def _read(path: Path, *, skip_bad: bool = False) -> list[dict[str, Any]]:
    return [record.fields for record in read_jsonl(path, Rejects(skip_bad))]


@pytest.mark.parametrize(
    ("name", "content", "what", "fix"),
    [
        ("a.csv", "id,title\n1,A\n", "is CSV", "papers.file=a.csv, then use "),
        ("a.csv", ZOTERO, "is CSV", "papers.file=a.csv papers.format=csv"),
        ("a.csv", "id;title\n1;A\n", "is CSV", "papers.file=a.csv"),
        ("a.tsv", "id\ttitle\n1\tA\n", "is a table", "papers.file=a.tsv"),
        ("a.jsonl", "id,title\n1,A\n", "is CSV", "rename it to a.csv; scimult prepare table"),
        ("l.csv", "id,name\n1,A\n", "is CSV", "papers.file=PAPERS labels.file=l.csv"),
        (
            "a.bib",
            "% mine\n\n@article{key,\n title={A}}\n",
            "BibTeX",
            "papers.file=a.bib, then use ",
        ),
        ("a.ris", "TY  - JOUR\nTI  - A\nER  - \n", "RIS", "papers.file=a.ris, then use "),
        ("a.xml", layouts.PUBMED, "PubMed's XML", "papers.file=a.xml, then use "),
        ("a.txt", layouts.BIBTEX, "BibTeX", "rename it to a.bib; scimult prepare table"),
        ("a.nbib", layouts.NBIB, "PubMed's .nbib", "papers.file=a.nbib, then use "),
        ("a.enw", layouts.ENW, "EndNote's .enw", "papers.file=a.enw, then use "),
        ("a.txt", layouts.WOS, "Web of Science's", "rename it to a.ciw; scimult prepare table"),
        ("a.txt", layouts.WOS_TABLE, "is a table", "papers.file=a.tsv, then use "),
        ("a.xml", '<?xml version="1.0"?>\n<a/>\n', "XML", "one line per paper"),
        ("a.json", "<!DOCTYPE html>\n<html>\n", "web page", "download the file itself"),
        ("a.json", '{\n  "id": "1",\n  "title": "A"\n}\n', "several lines", "jq -c . "),
    ],
)
def test_another_format_is_named_with_what_reads_it(
    tmp_path: Path, name: str, content: str, what: str, fix: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    for skip_bad in (False, True):  # its lines are not bad records: none of them is one
        with pytest.raises(DataError) as caught:
            _read(tmp_path / name, skip_bad=skip_bad)
        assert what in str(caught.value)
        assert fix in str(caught.value)
        assert str(caught.value).count("Fix:") == 1


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("csv", "id,title,abstract\n1,A,\n"),
        ("csv", ZOTERO),
        ("tsv", "Title\tSummary\nA\tOf x\n"),
        ("csv", "id;title\n1;A, b\n"),
        ("bib", "@misc{1, title={A}}\n"),
        ("ris", "TY  - JOUR\nTI  - A\nER  - \n"),
        ("enw", "%0 Book\n%T A\n"),
        ("tsv", "PT\tTI\tUT\nJ\tA\tWOS:1\n"),
    ],
)
def test_the_command_of_the_message_reads_the_table(
    tmp_path: Path, suffix: str, content: str
) -> None:
    table = tmp_path / f"my papers.{suffix}"
    table.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        _read(table)
    command, _, folder = str(caught.value.fix).partition(", then use ")
    completed(*shlex.split(command)[1:])
    (made,) = pq.read_table(Path(shlex.split(folder)[0]) / "papers.parquet").to_pylist()
    assert made["title"].startswith("A")


def test_an_array_is_read_as_lines_are(tmp_path: Path) -> None:
    rows = [{"id": "1", "title": "A"}, {"id": "2", "title": "B", "abstract": None}]
    texts = (json.dumps(rows), json.dumps(rows, indent=2), "\ufeff \n" + json.dumps(rows))
    for text in texts:
        (tmp_path / "a.json").write_text(text, encoding="utf-8")
        (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
        assert _read(tmp_path / "a.json") == _read(tmp_path / "a.json.gz") == rows


def test_a_page_of_openalex_is_read_with_its_abstracts(tmp_path: Path) -> None:
    works = [
        {"id": "W1", "title": "A", "abstract_inverted_index": {"of": [1], "Layouts": [0, 2]}},
        {"id": "W2", "title": "B", "abstract_inverted_index": None},
    ]
    page = {"meta": {"count": 2}, "results": works, "group_by": []}
    (tmp_path / "page.json").write_text(json.dumps(page), encoding="utf-8")
    (tmp_path / "works.jsonl").write_text("\n".join(map(json.dumps, works)), encoding="utf-8")
    texts = [{**works[0], "abstract_inverted_index": '{"of": [1], "Layouts": [0, 2]}'}, works[1]]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)), encoding="utf-8")
    for name in ("page.json", "works.jsonl", "texts.jsonl"):
        first, second = _read(tmp_path / name)
        assert first == {"id": "W1", "title": "A", "abstract": "Layouts of Layouts"}
        assert second["title"] == "B"


@pytest.mark.parametrize("between", ["", "\n", " \r\n"])
@pytest.mark.parametrize(
    "page",
    [
        lambda works: {"meta": {"count": 9}, "results": works, "group_by": [{"a": "]"}]},
        lambda works: {"status": "ok", "message": {"items": works, "query": {"q": "{"}}},
        lambda works: {"items": works},
        lambda works: {"total": 2, "offset": 0, "next": 2, "data": works},
        lambda works: {"total": 2, "token": None, "data": works},
    ],
)
def test_pages_appended_to_one_file_are_all_read(
    tmp_path: Path, page: Callable[[Any], Any], between: str
) -> None:
    works = [{"id": str(number), "title": "long " * 9000} for number in range(7)]
    text = between.join(json.dumps(page(part)) for part in (works[:3], [], works[3:]))
    (tmp_path / "pages.json").write_text(text)
    assert _read(tmp_path / "pages.json") == works
    for extra in ("{", '{"id": "8"}', "]"):
        (tmp_path / "pages.json").write_text(text + extra)
        with pytest.raises(DataError, match=r"pages\.json:8: JSON file is cut off or damaged"):
            _read(tmp_path / "pages.json")


@pytest.mark.parametrize(
    "first",
    ['{"id": "1", "ti', "[1, 2]", '"id", "title"}', "nonsense", "a, b, c}", '{"meta": 1, "id": 2}'],
)
def test_a_bad_first_line_is_still_a_bad_line(tmp_path: Path, first: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(first + '\n{"id": "2"}\n', encoding="utf-8")
    assert _read(path, skip_bad=True)[-1] == {"id": "2"}


def test_a_bad_element_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"id": "1"}, 7, {"id": "2"}]', encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.json:2: element is not an object"):
        _read(path)
    assert _read(path, skip_bad=True) == [{"id": "1"}, {"id": "2"}]


def test_a_cut_array_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"id": "1"}, {"id": ', encoding="utf-8")
    with pytest.raises(DataError, match="cut off or damaged"):
        _read(path)


@pytest.mark.parametrize("block", [3, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 1])
def test_elements_do_not_depend_on_blocks(
    block: int, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_BLOCK", block)
    values = [{"a": [1, {"b": "],["}]}, {"é": 1e-3, "n": None}, {}, 123456, "x", [[]]] * 3
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    assert list(formats.read_elements(io.StringIO(text), formats.ARRAY)) == values
    for end in range(3, len(text) - 1):
        with pytest.raises(ValueError):  # noqa: PT011 - any way of saying it
            list(formats.read_elements(io.StringIO(text[:end]), formats.ARRAY))


@pytest.mark.parametrize("value", ["[" * 200_000, "9" * 5000], ids=["nested", "digits"])
def test_an_element_that_cannot_be_read_is_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"id": "1"}, {"id": ' + value, encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.json:2: JSON file is cut off or damaged"):
        _read(path)


@pytest.mark.parametrize(
    "bad",
    ['{"a": "x\ny"}', '{"a": 1 "b"}', r'{"a": "\q"}', '{"a": "x" y"}', '{"a": 1} {"a": 2}'],
)
def test_what_follows_a_bad_element_is_not_read(bad: str) -> None:
    """It would all be held in memory, in search of text that completes the element."""
    text = io.StringIO('[{"a": 0}, ' + bad + ', {"a": "long"}' * 100_000 + "]")
    elements = formats.read_elements(text, formats.ARRAY)
    assert next(elements) == {"a": 0}
    with pytest.raises(ValueError, match=r'near .*"a"'):
        next(elements)
    assert text.tell() < 200_000


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_number_calls_may_be_anywhere(tmp_path: Path, name: str) -> None:
    records = [
        '{"a": "' + "x" * length + '", "n": NumberInt(7)}' for length in (100_000, 9, 70_000)
    ]
    data = f"[{','.join(records)}]".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert [record.fields["n"] for record in read_jsonl(tmp_path / name, Rejects())] == [7, 7, 7]
