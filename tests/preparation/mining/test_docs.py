"""The Python of docs/mining.md, on a mined folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from scimult.data.prepared import PreparedData
from scimult.preparation.dataset import build_dataset
from tests.raw_corpus import raw_config, write_raw

PAGE = Path(__file__).parents[3] / "docs" / "mining.md"


@pytest.mark.long
def test_the_snippet_prints_what_each_rule_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r'^python -c "(.*?)" DIR$', PAGE.read_text(encoding="utf-8"), re.M | re.S)
    out = tmp_path / "prepared"
    build_dataset(raw_config(write_raw(tmp_path / "raw")), out)
    monkeypatch.setattr(sys, "argv", ["-c", str(out)])
    capsys.readouterr()
    exec(compile(code, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    entries = PreparedData.open(out).manifest.pairs
    assert printed == [f"{entry.file} {entry.drawn}" for entry in entries]
    assert printed
