"""The contents of a server's /metrics."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.running_server import RunningServer


@dataclass(frozen=True)
class Scraped:
    """The samples of one scrape, and the names of its metrics as queries use them."""

    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples with this name and these labels; 0 without any."""
        wanted = labels.items()
        return sum(value for (key, has), value in self.samples.items() if key == f"genai:{name}" and wanted <= set(has))

    def names(self) -> set[str]:
        """The names of all samples."""
        return {name for name, _ in self.samples}


def parse(text: str) -> Scraped:
    """Parse Prometheus's text format."""
    return Scraped(
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


def scrape(server: RunningServer) -> Scraped:
    """GET /metrics."""
    response = server.client.get("/metrics")
    assert response.status_code == 200, response.text
    return parse(response.text)
