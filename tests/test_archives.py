"""Downloads of archives: wanted files, refused ones, and killed processes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from scimult.archives import unpack
from scimult.config import apply_overrides, validate
from scimult.downloads import RECORD, Archive, address, download
from scimult.errors import ConfigError, DataError
from scimult.evaluation.datasets import missing_files, remote_files
from scimult.evaluation.suites import load_suite
from scimult.preparation.sources import SOURCES, beir, msmarco
from tests.command import completed
from tests.file_server import Server, file_server

server = pytest.fixture(file_server)
FILES = {"set/corpus.jsonl": b"corpus\n" * 999, "set/qrels/test.tsv": b"judged", "set/more": b"x"}
WANTED = ("corpus.jsonl", "qrels/test.tsv")


def packed(kind: str, files: dict[str, bytes] | None = None) -> bytes:
    """Return an archive of files: a zip, or a tar compressed according to the suffix."""
    target = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in (files or FILES).items():
                archive.writestr(name, content)
        return target.getvalue()
    options: Any = f"w:{kind.partition('.')[2]}"
    with tarfile.open(fileobj=target, mode=options) as tar:
        for name, content in (files or FILES).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def _archive(server: Server, kind: str = "zip", **more: Any) -> Archive:
    name = f"set.{kind}"
    options = {"wanted": WANTED, "strip": 1, **more}
    return Archive(f"in/{name}", address(server.base, name), **options)


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz", "tar.bz2", "tar"])
def test_what_is_wanted_comes_out_and_the_archive_goes(
    server: Server, tmp_path: Path, kind: str
) -> None:
    server.content = packed(kind)
    told: list[Path] = []
    got = download([_archive(server, kind)], tmp_path, told.append)
    assert [path.relative_to(tmp_path).as_posix() for path in got] == [f"in/{n}" for n in WANTED]
    assert got[0].read_bytes() == FILES["set/corpus.jsonl"]
    assert told == [tmp_path / f"in/set.{kind}"]
    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"corpus.jsonl", "test.tsv", RECORD}
    record = json.loads((tmp_path / RECORD).read_text())
    assert record["in/corpus.jsonl"]["sha256"] == hashlib.sha256(got[0].read_bytes()).hexdigest()
    assert download([_archive(server, kind)], tmp_path) == []
    assert len(server.asked) == 1


def test_files_that_were_taken_out_are_compared_later(server: Server, tmp_path: Path) -> None:
    server.content = packed("zip")
    (path, _) = download([_archive(server)], tmp_path)
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match="differs from the file known"):
        download([_archive(server)], tmp_path)
    path.unlink()
    assert download([_archive(server)], tmp_path) == [path]
    assert path.read_bytes() == FILES["set/corpus.jsonl"]
    assert len(server.asked) == 2


def test_an_archive_that_is_another_one_later_is_refused(server: Server, tmp_path: Path) -> None:
    server.content = packed("zip")
    (path, _) = download([_archive(server)], tmp_path)
    path.unlink()
    server.content = packed("zip", {**FILES, "set/corpus.jsonl": b"other"})
    with pytest.raises(DataError, match="differs from the file known"):
        download([_archive(server)], tmp_path)
    assert not path.exists()


def test_files_of_another_set_are_not_taken_for_this_one(server: Server, tmp_path: Path) -> None:
    def called(name: str, base: str = server.base) -> Archive:
        return Archive(f"in/{name}", address(base, name), wanted=WANTED, strip=1)

    server.content = packed("zip")
    assert len(download([called("scifact.zip")], tmp_path)) == 2
    assert download([called("scifact.zip", f"{server.base}/mirror")], tmp_path) == []
    with pytest.raises(DataError, match=r"corpus.jsonl: was downloaded .*scifact.zip, not .*nf"):
        download([called("nfcorpus.zip")], tmp_path)
    assert len(server.asked) == 1


def test_a_glob_is_answered_by_what_the_archive_had(server: Server, tmp_path: Path) -> None:
    """Of months in folders, a lost one is restored; if all are there, nothing is requested."""
    files = {f"{year}/arXiv_src_{year}_00.jsonl": b"{}" for year in (21, 22)}
    server.content = packed("tar.xz", {**files, "README": b"read"})
    archive = _archive(server, "tar.xz", wanted=("*arXiv_src_*.jsonl*",), strip=0)
    got = download([archive], tmp_path)
    assert {path.name for path in got} == {"arXiv_src_21_00.jsonl", "arXiv_src_22_00.jsonl"}
    assert download([archive], tmp_path) == []
    got[1].unlink()
    assert download([archive], tmp_path) == [got[1]]
    assert len(server.asked) == 2


def test_the_md5_of_the_owners_is_compared(server: Server, tmp_path: Path) -> None:
    server.content = packed("zip")
    with pytest.raises(DataError, match="its MD5 is"):
        download([_archive(server, md5="0" * 32)], tmp_path)
    assert not list(tmp_path.rglob("*.jsonl"))
    right = hashlib.md5(server.content, usedforsecurity=False).hexdigest()
    assert len(download([_archive(server, md5=right)], tmp_path)) == 2


def test_what_the_user_put_there_stays(server: Server, tmp_path: Path) -> None:
    """A user's archive is used and kept; a user's file is neither replaced nor verified."""
    (tmp_path / "in").mkdir()
    own = tmp_path / "in" / "set.zip"
    own.write_bytes(packed("zip"))
    mine = tmp_path / "in" / "corpus.jsonl"
    mine.write_bytes(b"mine")
    (path,) = download([_archive(server)], tmp_path)
    assert path.read_bytes() == b"judged"
    assert mine.read_bytes() == b"mine"
    assert own.exists()
    mine.write_bytes(b"changed")
    assert download([_archive(server)], tmp_path) == []
    assert server.asked == []


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz", "tar.bz2"])
def test_a_damaged_archive_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"set.{kind}"
    whole = packed(kind, {"corpus.jsonl": bytes(range(256)) * 2000})
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="archive is damaged") as met:
        unpack(path, tmp_path, ["corpus.jsonl"])
    assert str(met.value).count("Fix:") == 1
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_an_encrypted_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    whole = packed("zip", {"corpus.jsonl": b"text"})
    # Bit 0 of the flags, in the local and in the central header, says "encrypted".
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = whole.index(signature) + at
        whole = whole[:start] + bytes([whole[start] | 1]) + whole[start + 1 :]
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"set.zip: archive is encrypted. Fix: unpack it"):
        unpack(path, tmp_path, ["corpus.jsonl"])


def test_bits_that_turned_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    whole = bytearray(packed("zip", {"corpus.jsonl": bytes(range(256)) * 2000}))
    whole[200] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DataError, match="archive is damaged"):
        unpack(path, tmp_path, ["corpus.jsonl"])
    assert not (tmp_path / "corpus.jsonl").exists()


def test_a_file_that_the_archive_lacks_is_named(server: Server, tmp_path: Path) -> None:
    server.content = packed("zip")
    with pytest.raises(DataError, match=r"archive lacks a file.*queries\.jsonl"):
        download([_archive(server, wanted=("queries.jsonl",))], tmp_path)


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", ["../corpus.jsonl", "set/../../corpus.jsonl", "/corpus.jsonl"])
def test_nothing_leaves_the_folder(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / "in" / f"set.{kind}"
    path.parent.mkdir()
    path.write_bytes(packed(kind, {name: b"out", "set/corpus.jsonl": b"in"}))
    unpack(path, path.parent, ["*corpus.jsonl"])
    assert (path.parent / "set" / "corpus.jsonl").read_bytes() == b"in"
    assert not (tmp_path / "corpus.jsonl").exists()


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("corpus.jsonl")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(DataError, match="lacks a file"):
        unpack(path, tmp_path, ["corpus.jsonl"])
    assert not (tmp_path / "corpus.jsonl").exists()


CALL = """
import sys
from pathlib import Path
from scimult.downloads import Archive, download
download([Archive("set.tar.gz", sys.argv[1], wanted=("*.bin",))], Path(sys.argv[2]))
"""


@pytest.mark.ranks
def test_killed_between_two_files_the_rest_comes_out(server: Server, tmp_path: Path) -> None:
    """After SIGKILL while unpacking, the archive is still there and not requested again."""
    files = {f"{n}.bin": bytes([n]) * 4_000_000 for n in range(40)}
    server.content = packed("tar.gz", files)
    command = [sys.executable, "-c", CALL, f"{server.base}/set.tar.gz", str(tmp_path)]
    with subprocess.Popen(command) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "1.bin").exists() and time.monotonic() < until:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    there = {path.name for path in tmp_path.glob("*.bin")}
    assert 1 < len(there) < 40
    assert (tmp_path / "set.tar.gz").exists()
    subprocess.run(command, check=True, timeout=120)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.bin")} == files
    left = {path.name for path in tmp_path.iterdir() if path.is_file() and path.stat().st_size}
    assert left == {*files, RECORD}
    assert len(server.asked) == 1


NEEDED = {
    "beir": ["name=scifact"],
    "inpars": ["files=[scifact/queries.jsonl]"],
    "dpr": ["files=[biencoder-nq-dev.json]"],
    "sentence-triples": ["files=[specter_train_triples.jsonl]"],
}


@pytest.mark.parametrize("name", [n for n in SOURCES if SOURCES[n].download is not None])
def test_addresses_of_sources_are_whole(name: str) -> None:
    """Every downloaded file that a source reads is where its reader expects it."""
    source = SOURCES[name]
    assert source.download is not None
    files = source.download(validate(source.options, apply_overrides({}, NEEDED.get(name, []))))
    assert files
    for file in files:
        assert re.fullmatch(r"https://[\w./-]+", file.url)
        assert ".." not in file.url
        assert not isinstance(file, Archive) or file.wanted
    if name in NEEDED:
        with pytest.raises(ConfigError, match="Fix: (pass|choose|name)"):
            source.download(source.options())


def test_a_set_of_beir_is_downloaded_and_converted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "scifact/corpus.jsonl": b'{"_id": "d", "title": "t", "text": "x"}\n',
        "scifact/queries.jsonl": b'{"_id": "q", "text": "x"}\n',
        "scifact/qrels/train.tsv": b"query-id\tcorpus-id\tscore\nq\td\t1\n",
    }
    zipped = packed("zip", files)
    server.files = {"/scifact.zip": zipped}
    monkeypatch.setattr(beir, "ADDRESS", server.base)
    digest = hashlib.md5(zipped, usedforsecurity=False).hexdigest()
    monkeypatch.setitem(beir.MD5, "scifact", digest)
    call = ["prepare", "beir", "name=scifact", "--download", "--raw", str(tmp_path / "raw")]
    for _ in range(2):
        completed(*call, "--input", tmp_path / "in")
    assert (tmp_path / "raw" / "scifact").is_dir()
    assert len(server.asked) == 1


def test_ms_marco_in_three_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two archives and one compressed file, of two owners."""
    monkeypatch.setattr(msmarco, "ADDRESS", server.base)
    triples = b"1\t10\t11\n"
    server.files = {
        "/qidpidtriples.train.full.2.tsv.gz": gzip.compress(triples),
        "/collection.tar.gz": packed("tar.gz", {"collection.tsv": b"10\tyes\n11\tno\n"}),
        "/queries.tar.gz": packed(
            "tar.gz", {"queries.train.tsv": b"1\task\n", "queries.dev.tsv": b""}
        ),
    }
    call = ["prepare", "msmarco", "triples=ids", "--download", "--raw", str(tmp_path / "raw")]
    completed(*call, "--input", tmp_path / "in")
    assert (tmp_path / "raw" / "msmarco").is_dir()
    assert not (tmp_path / "in" / "queries.dev.tsv").exists()


@pytest.mark.parametrize("suite", ["multi_objective", "science"])
def test_sets_of_an_archive_have_all_their_files_in_it(suite: str, tmp_path: Path) -> None:
    checked = 0
    for name, benchmark in load_suite(suite).benchmarks.items():
        if benchmark.remote is None or benchmark.remote.archive is None:
            assert benchmark.remote or benchmark.hub, name
            continue
        [archive] = remote_files(benchmark, tmp_path)
        assert isinstance(archive, Archive)
        into = (tmp_path / archive.name).parent
        assert [into / wanted for wanted in archive.wanted] == missing_files(benchmark, tmp_path)
        checked += 1
    assert checked


def test_a_suite_is_downloaded_from_an_archive_and_scored(server: Server, tmp_path: Path) -> None:
    """CSFCube as the repository's host packs it: in a folder named after the release."""
    papers = [{"paper_id": str(n), "title": f"word{n}", "abstract": ["one"]} for n in range(4)]
    pool = {"0": {"cands": ["1", "2", "3"], "relevance_adju": [3, 0, 1]}}
    files = {
        "abstracts-csfcube-preds.jsonl": "\n".join(map(json.dumps, papers)),
        "test-pid2anns-csfcube-method.json": json.dumps(pool),
        "evaluation_splits.json": json.dumps({"all": {"fold1_test": ["0_method"]}}),
    }
    inside = {f"CSFCube-1.1/{name}": content.encode() for name, content in files.items()}
    server.files = {"/v1.1.zip": packed("zip", inside)}
    data = str(tmp_path / "data")
    call = ["evaluate", "--suite", "science", "--sets", "csfcube", "--data", data, "--bm25"]
    call += ["--out", str(tmp_path / "out"), "--download"]
    call += [f"benchmarks.csfcube.remote.base={server.base}", "benchmarks.csfcube.split=method"]
    completed(*call, "benchmarks.csfcube.expected=null")
