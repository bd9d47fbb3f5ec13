"""``scimult evaluate --audit``: how much of the evaluation sets is in a prepared folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scimult.evaluation.contamination import Contamination
    from scimult.evaluation.harness import LoadedSet
    from scimult.evaluation.task_data import TaskData
    from scimult.preparation.hygiene.audit import AuditedSet


def audit_sets(folder: Path, sets: Mapping[str, LoadedSet]) -> dict[str, Contamination]:
    """Count the texts and pairs of loaded sets that are in a prepared folder.

    Raises
    ------
    DataError
        If it is not a prepared folder.
    """
    from scimult.data.prepared import PreparedData
    from scimult.evaluation.contamination import Contamination
    from scimult.preparation.hygiene.audit import audit

    data = PreparedData.open(folder)
    counts = audit(data, {name: _audited(entry.dataset) for name, entry in sets.items()})
    source = {"folder": folder.resolve().name, "fingerprint": data.fingerprint}
    return {name: Contamination(**source, **entry) for name, entry in counts.items()}


def _audited(data: TaskData) -> AuditedSet:
    """Return a set's texts to audit; training papers of linear models count as candidates."""
    from scimult.evaluation.task_data import Dataset, PaperSet
    from scimult.preparation.hygiene.audit import AuditedSet

    if isinstance(data, Dataset):
        relevant = None
        if data.reviewers is None:
            judged = zip(data.qrels.rows, data.qrels.grades, strict=True)
            relevant = [rows[grades > 0] for rows, grades in judged]
        return AuditedSet(
            data.query_ids, data.queries, data.candidate_ids, data.candidates, relevant
        )
    if isinstance(data, PaperSet):
        test, train = data.test_rows, data.train_rows
        return AuditedSet(
            [data.ids[row] for row in test],
            [data.texts[row] for row in test],
            [data.ids[row] for row in train],
            [data.texts[row] for row in train],
        )
    return AuditedSet(data.paper_ids, data.texts, [], [])
