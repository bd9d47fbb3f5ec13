"""Downloads from a local server: interrupted, with changed content, without ranges."""

from __future__ import annotations

import errno
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError

import pytest

from scimult.config import apply_overrides, validate
from scimult.downloads import RECORD, Remote, address, download
from scimult.errors import DataError, StorageError
from scimult.evaluation.datasets import missing_files, remote_files
from scimult.evaluation.suites import load_suite
from scimult.files import only_writer
from scimult.preparation.sources import SOURCES
from tests.command import completed, invoke, refused
from tests.file_server import CONTENT, DIGEST, Server, file_server
from tests.waiting import wait_until

server = pytest.fixture(file_server)


def _remote(server: Server, sha256: str | None = None) -> Remote:
    return Remote("sub/a b.json", address(server.base, "sub/a b.json"), sha256)


def test_a_file_comes_whole_and_is_recorded(server: Server, tmp_path: Path) -> None:
    told: list[Path] = []
    (path,) = download([_remote(server)], tmp_path, told.append)
    assert path.read_bytes() == CONTENT
    assert told == [path]
    record = json.loads((tmp_path / RECORD).read_text())
    assert record == {
        "sub/a b.json": {"url": f"{server.base}/sub/a%20b.json", "sha256": DIGEST, "bytes": 1 << 20}
    }
    assert {found.name for found in tmp_path.rglob("*")} == {"sub", "a b.json", RECORD}
    assert download([_remote(server)], tmp_path) == []
    assert len(server.asked) == 1


def test_a_broken_connection_goes_on_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000, 200_000]
    (path,) = download([_remote(server, DIGEST)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]


def test_another_call_goes_on_after_the_first_gave_up(server: Server, tmp_path: Path) -> None:
    server.cut, server.errors = [300_000], []
    server.cut += [0, 0]
    with pytest.raises(DataError, match="resumes the download"):
        download([_remote(server)], tmp_path)
    assert not (tmp_path / "sub" / "a b.json").exists()
    (path,) = download([_remote(server)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=300000-"


def test_without_ranges_it_begins_anew(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cut = False, [300_000]
    (path,) = download([_remote(server)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


@pytest.mark.parametrize("mark", [None, 'W/"weak"'])
def test_what_the_server_does_not_mark_is_not_gone_on_with(
    server: Server, tmp_path: Path, mark: str | None
) -> None:
    server.mark, server.cut = mark, [300_000]
    (path,) = download([_remote(server)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, None]


def test_a_file_that_changed_in_between_is_not_mixed(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000, 0, 0]
    with pytest.raises(DataError):
        download([_remote(server)], tmp_path)
    server.content, server.mark = CONTENT[::-1] + b"more", '"two"'
    (path,) = download([_remote(server)], tmp_path)
    assert path.read_bytes() == server.content


def test_a_part_longer_than_the_file_begins_anew(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000, 0, 0]
    with pytest.raises(DataError):
        download([_remote(server)], tmp_path)
    server.content = CONTENT[:1000]  # and the same mark
    (path,) = download([_remote(server)], tmp_path)
    assert path.read_bytes() == CONTENT[:1000]


def test_a_whole_part_is_not_downloaded_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(path: Path) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("scimult.downloads.sha256", end)
        download([_remote(server)], tmp_path)
    (path,) = download([_remote(server)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={len(CONTENT)}-"]
    assert {found.name for found in tmp_path.rglob("*")} == {"sub", "a b.json", RECORD}


UNKNOWN = URLError(socket.gaierror(-2, "Name or service not known"))
REFUSED = URLError(ConnectionRefusedError(111, "Connection refused"))


@pytest.mark.parametrize(
    ("errors", "waits"),
    [
        ([UNKNOWN], [1.0]),
        ([URLError(OSError(errno.ENETUNREACH, "Network is unreachable"))], [1.0]),
        ([URLError(TimeoutError("timed out"))], [1.0]),
        ([REFUSED], [1.0, 4.0, 15.0]),
        ([ConnectionResetError(), UNKNOWN], [1.0, 4.0, 15.0]),
    ],
)
def test_a_network_that_was_never_there_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: list[Exception], waits: list[float]
) -> None:
    """One that breaks off is."""
    waited: list[float] = []

    def fails(*_: object, **__: object) -> None:
        raise errors[min(len(waited), len(errors) - 1)]

    monkeypatch.setattr("scimult.transfers.urlopen", fails)
    monkeypatch.setattr(time, "sleep", waited.append)
    told = "Fix: check the network, then run" if errors[-1] is not REFUSED else "Fix: run"
    with pytest.raises(DataError, match=f"cannot read https://there/x: .*{told} the command again"):
        download([Remote("x", "https://there/x")], tmp_path)
    assert waited == waits


def test_another_checksum_is_refused_and_nothing_stays(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="differs from the file known") as met:
        download([_remote(server, "0" * 64)], tmp_path)
    assert str(met.value).count("Fix:") == 1
    assert [found.name for found in tmp_path.rglob("*")] == ["sub"]


def test_the_first_download_is_trusted_and_later_ones_are_compared(
    server: Server, tmp_path: Path
) -> None:
    (path,) = download([_remote(server)], tmp_path)
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match="differs from the file known"):
        download([_remote(server)], tmp_path)
    path.unlink()
    server.content = b"other"
    with pytest.raises(DataError, match="differs from the file known"):
        download([_remote(server)], tmp_path)
    server.content = CONTENT
    download([_remote(server)], tmp_path)
    assert path.read_bytes() == CONTENT


def test_what_the_user_put_there_is_left_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a b.json").write_bytes(b"mine")
    assert download([_remote(server)], tmp_path) == []
    assert server.asked == []


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (403, 1), (503, 3)])
def test_errors_of_the_server(server: Server, tmp_path: Path, code: int, tries: int) -> None:
    server.errors = [code] * tries
    with pytest.raises(DataError, match=f"HTTP Error {code}"):
        download([_remote(server)], tmp_path)
    assert len(server.asked) == tries


def test_an_error_that_passes_is_outlived(server: Server, tmp_path: Path) -> None:
    server.errors = [503, 429]
    (path,) = download([_remote(server)], tmp_path)
    assert path.read_bytes() == CONTENT


def test_no_room_and_two_at_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with only_writer(tmp_path / ".downloading"), pytest.raises(StorageError, match="another"):
        download([_remote(server)], tmp_path)
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr("scimult.files.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(StorageError, match="downloads need 1.0 MB"):
        download([_remote(server)], tmp_path)


CALL = """
import sys
from pathlib import Path
from scimult.downloads import Remote, download
download([Remote("a.bin", sys.argv[1], sys.argv[2])], Path(sys.argv[3]))
"""


@pytest.mark.ranks
def test_a_killed_process_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    """After SIGKILL in the middle of the body, the second process requests only the rest."""
    server.slow = True
    command = [sys.executable, "-c", CALL, f"{server.base}/a.bin", DIGEST, str(tmp_path)]
    with subprocess.Popen(command) as process:
        part = tmp_path / ".a.bin.part"
        wait_until(lambda: part.exists() and part.stat().st_size)
        process.send_signal(signal.SIGKILL)
    size = part.stat().st_size
    assert 0 < size < len(CONTENT)
    server.slow = False
    subprocess.run(command, check=True, timeout=120)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={size}-"]


@pytest.mark.parametrize("suite", ["scidocs", "s2and", "mdcr"])
def test_every_file_that_a_suite_needs_has_an_address(suite: str, tmp_path: Path) -> None:
    for benchmark in load_suite(suite).benchmarks.values():
        files = remote_files(benchmark, tmp_path)
        assert [(tmp_path / file.name).resolve() for file in files] == [
            path.resolve() for path in missing_files(benchmark, tmp_path)
        ]
        assert all(re.fullmatch(r"https://[\w./-]+", file.url) for file in files)
        assert not any(".." in file.url for file in files)


def test_a_suite_is_downloaded_and_scored(server: Server, tmp_path: Path) -> None:
    """MDCR's two files under its page's names, downloaded once."""
    texts = [{"paper_id": str(n), "title": f"word{n} paper", "abstract": ""} for n in range(4)]
    server.files = {
        "/mdcr_test.json": json.dumps({"Art": {"0": {"true": ["1"], "bm25": ["2", "3"]}}}),
        "/mdcr_test_data.jsonl": "\n".join(map(json.dumps, texts)),
    }
    call = ["evaluate", "--suite", "mdcr", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    call += ["--bm25", "--download", f"benchmarks.mdcr.remote.base={server.base}"]
    for asked in (2, 2):
        completed(*call, "--resume")
        assert len(server.asked) == asked
    assert "mdcr/test.json" in json.loads((tmp_path / RECORD).read_text())


def test_a_source_is_downloaded_and_converted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scimult.preparation.sources.scidocs.ADDRESS", server.base)
    papers = {name: {"paper_id": name, "title": name, "abstract": "text"} for name in "abc"}
    server.files = {
        "/cite/val.qrel": "a 0 b 1\na 0 c 0\n",
        "/paper_metadata_view_cite_read.json": json.dumps(papers),
    }
    call = ["prepare", "scidocs", "links=[cite]", "--download", "--raw", str(tmp_path / "raw")]
    completed(*call, "--input", tmp_path / "in")
    assert (tmp_path / "raw" / "scidocs-cite").is_dir()
    for arguments, problem in (
        ([*call], "--download needs a source, and --input"),
        (
            ["prepare", "specter", "--download", "--input", str(tmp_path), "--raw", "x"],
            "cannot be downloaded automatically",
        ),
    ):
        assert problem in refused(*arguments)


def test_what_is_there_in_another_compression_is_not_downloaded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("beir", "msmarco"):
        monkeypatch.setattr(f"scimult.preparation.sources.{source}.ADDRESS", server.base)
    options = {
        "beir": ["name=scifact", "splits=[test]"],
        "msmarco": ["triples=ids"],
    }
    names = {
        "beir": ("corpus.jsonl.gz", "queries.jsonl.zst", "qrels/test.tsv.gz"),
        "msmarco": ("collection.tsv", "queries.train.tsv", "qidpidtriples.train.full.2.tsv"),
    }
    for source, there in names.items():
        for name in there:
            path = tmp_path / source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        call = ["prepare", source, *options[source], "--download", "--raw", str(tmp_path / "raw")]
        invoke(*call, "--input", tmp_path / source)
        assert server.asked == []


@pytest.mark.parametrize("options", [[], ["parts=[PAR]", "splits=[test]"]])
def test_pmc_patients_are_asked_for_where_the_hub_has_them(options: list[str]) -> None:
    source = SOURCES["pmc-patients"]
    assert source.download is not None
    files = source.download(validate(source.options, apply_overrides({}, options)))
    base = "https://huggingface.co/datasets/zhengyun21/PMC-Patients-ReCDS/resolve/main/"
    assert [file.url for file in files] == [base + file.name for file in files]
    names = {file.name for file in files}
    wanted = {"PAR/PAR_PMIDs.json", "PAR/qrels_test.tsv", "queries/test_queries.jsonl"}
    if not options:
        wanted = {"PPR/corpus.jsonl", "PPR/qrels_train.tsv", "queries/train_queries.jsonl"}
    assert names == wanted
