"""What the service documents it does: requests made from its OpenAPI, and ones that break it."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.serving.conftest import Running

PATHS = [
    ("POST", "/encode"),
    ("POST", "/search"),
    ("POST", "/recommend"),
    ("POST", "/tag"),
    ("POST", "/match"),
    ("GET", "/library"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/"),
    ("GET", "/v1/projects"),
    ("GET", "/v1/projects/{project_id}"),
    ("POST", "/v1/projects/{project_id}/suggest"),
    ("POST", "/v1/projects/{project_id}/suggest-batch"),
    ("POST", "/v1/projects/{project_id}/learn"),
]


@pytest.fixture(scope="module")
def documented(server: Running) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_all_paths_are_tried(documented: schemathesis.BaseSchema) -> None:
    found = [one.ok() for one in documented.get_all_operations()]
    assert sorted((one.method.upper(), one.path) for one in found) == sorted(PATHS)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_answers_are_as_documented(
    documented: schemathesis.BaseSchema, method: str, path: str
) -> None:
    """Codes and bodies are documented, nothing is a server error, bad data is refused."""
    operation = documented[path][method]

    for mode, examples in ((GenerationMode.POSITIVE, 10), (GenerationMode.NEGATIVE, 10)):
        if mode is GenerationMode.NEGATIVE and (method == "GET" or path.endswith("learn")):
            continue

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            # An empty search, or an id that no paper has, fits the schema and is refused; data
            # that breaks it may be refused for its size (413), which the check does not expect.
            left_out = [positive_data_acceptance, negative_data_rejection]
            answer = case.call_and_validate(timeout=60, excluded_checks=left_out)
            if mode is GenerationMode.NEGATIVE:
                assert 400 <= answer.status_code < 500, case.as_curl_command()

        check()
