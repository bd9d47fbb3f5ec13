"""Hub names: what is downloaded, and errors if nothing is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.card import own_card
from scimult.errors import CheckpointError
from scimult.inference import SciMult
from tests.tiny import save_tiny_model


class Hub:
    """Replaces ``snapshot_download``: serves one folder and records requests."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, name: str, *, allow_patterns: list[str]) -> str:
        self.asked.append((name, allow_patterns))
        if self.folder is None:
            raise LocalEntryNotFoundError("offline and not in the cache\nmore")
        return str(self.folder)


def served(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> Hub:
    found = Hub(folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
    return found


def test_name_is_downloaded_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = served(monkeypatch, save_tiny_model(tmp_path / "m"))
    model = SciMult.from_pretrained("someone/tiny-model")
    assert (model.name, model.tasks.names[0]) == ("tiny-model", "search")
    (asked,) = found.asked
    assert asked[0] == "someone/tiny-model"
    assert "*.safetensors" in asked[1]
    assert not any("bin" in pattern or "py" in pattern for pattern in asked[1])


def test_pickled_weights_are_asked_for_only_without_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model(tmp_path / "m")
    (folder / "2_Dense").mkdir()
    (folder / "model.safetensors").rename(folder / "2_Dense" / "model.safetensors")
    found = served(monkeypatch, folder)
    with pytest.raises(CheckpointError, match="no weights here"):
        load_pretrained("someone/old")
    assert "pytorch_model*.bin" in found.asked[1][1]


def test_both_readings_are_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, None)
    with pytest.raises(
        CheckpointError,
        match=r"runs/typo: neither a folder nor reachable on the hub .LocalEntryNotFoundError: "
        r"offline and not in the cache\).*HF_HUB_OFFLINE",
    ):
        load_pretrained("runs/typo")


@pytest.mark.parametrize("name", ["typo", "/runs/typo", "./typo", "../typo", "a/b/c", "a b/c"])
def test_paths_never_go_to_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = served(monkeypatch, None)
    with pytest.raises(CheckpointError, match="folder does not exist"):
        load_pretrained(name)
    assert not found.asked


def test_a_local_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = served(monkeypatch, None)
    save_tiny_model(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    load_pretrained("org/name")
    assert not found.asked


def test_offline_client_gives_our_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client, offline through HF_HUB_OFFLINE=1, with an empty cache."""
    real: Any = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: real(*a, **k, cache_dir=tmp_path)
    )
    with pytest.raises(CheckpointError, match="neither a folder nor reachable on the hub"):
        load_pretrained("someone/not-downloaded")


def test_errors_of_the_http_library_give_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a proxy that lets nothing through is no OSError."""

    def refused(name: str, **_: Any) -> str:
        raise type("ProxyError", (Exception,), {})("403 Forbidden")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    with pytest.raises(CheckpointError, match=r"on the hub .ProxyError: 403 Forbidden\)"):
        load_pretrained("someone/model")


def test_cards_name_bases_on_the_hub_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = load_pretrained(save_tiny_model(Path("work/base")))
    for base, named in (("someone/encoder", True), ("work/base", False), ("./base/x", False)):
        model.config.provenance = {"base": base}
        card = own_card(model.config, model.model.state_dict(), "m")
        assert (f"base_model: {base}\n" in card) == named


def test_texts_of_users_stay_in_their_cells_of_a_card(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    config = model.config.model_copy(deep=True)
    config.tasks[0] = config.tasks[0].model_copy(update={"instruction": "A | B:\n__now__"})
    config.provenance = {"run": "runs/~~old~~"}
    card = own_card(config, model.model.state_dict(), "a_b")
    (row,) = [line for line in card.splitlines() if line.startswith(f"| {config.tasks[0].name} |")]
    assert row.endswith(r" | A \| B: \_\_now\_\_ |")
    assert "\n# a_b\n" in card
    assert "- run: runs/\\~\\~old\\~\\~\n" in card
