"""Counters and times of a service, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "scimult_requests", "Requests answered.", ("path", "status"), registry=registry
        )
        self.seconds = Histogram(
            "scimult_request_seconds",
            "Seconds from the first byte of a request to the last byte of its answer.",
            ("path",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.waiting = Gauge("scimult_requests_in_flight", "Requests accepted.", registry=registry)
        self._tokens = Counter("scimult_encoded_tokens", "Tokens encoded.", registry=registry)
        self._texts = Histogram(
            "scimult_pass_texts",
            "Texts per pass of the model.",
            (),
            registry=registry,
            buckets=_TEXTS,
        )
        self.papers = Gauge("scimult_library_papers", "Papers in the library.", registry=registry)
        self.generation = Gauge(
            "scimult_library_generation", "Changes of the library so far.", registry=registry
        )

    def passed(self, texts: int, tokens: int) -> None:
        """Count a pass of the model."""
        self._texts.observe(texts)
        self._tokens.inc(tokens)

    def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
