"""Checks the input file of a batch line by line and collects the errors."""

from collections.abc import Callable, Sequence

from genai_server.batch_files.batch_lines import BatchLine, LineError, digest
from genai_server.errors import GenaiServerError, quoted

# Errors that are reported of a batch. The rest of its input is not read.
MAX_ERRORS = 50


class InputCheck:
    """Checks the lines of a batch's input: duplicate custom ids, models that cannot be used and the number of requests.

    `check_model` raises a GenaiServerError for a model that cannot be used.
    """

    def __init__(self, max_requests: int, check_model: Callable[[str | None], object]) -> None:
        self._errors: list[LineError] = []
        self._max_requests = max_requests
        self._check_model = check_model
        # Digests of the custom ids.
        self._ids: set[bytes] = set()
        # Models that can be used.
        self._models: set[str | None] = set()

    @property
    def num_requests(self) -> int:
        """Number of requests with different custom ids in the lines checked so far."""
        return len(self._ids)

    @property
    def is_decided(self) -> bool:
        """Whether the batch is certain to fail, so that the remaining lines need not be checked."""
        return len(self._errors) >= MAX_ERRORS or len(self._ids) > self._max_requests

    def add(self, lines: Sequence[BatchLine | LineError]) -> None:
        """Check the next lines of the input, and keep their errors."""
        for line in lines:
            error = line if isinstance(line, LineError) else self._wrong(line)
            if error is not None:
                self._errors.append(error)

    def errors(self) -> list[LineError]:
        """The errors to report for the batch: those of single lines, at most MAX_ERRORS, or one about the number of
        requests. Empty if the input is valid.
        """
        if len(self._ids) > self._max_requests:
            message = f"a batch may have at most {self._max_requests} requests (GENAI_MAX_BATCH_REQUESTS)"
            return [LineError(None, "too_many_requests", message)]
        if not self._ids and not self._errors:
            return [LineError(None, "empty_file", "the input file has no requests")]
        return self._errors[:MAX_ERRORS]

    def _wrong(self, line: BatchLine) -> LineError | None:
        id = digest(line.custom_id)
        if id in self._ids:
            message = f"custom_id {quoted(line.custom_id)} is that of an earlier line"
            return LineError(line.number, "duplicate_custom_id", message, "custom_id")
        self._ids.add(id)
        if line.model not in self._models:
            try:
                self._check_model(line.model)
            except GenaiServerError as error:
                return LineError(line.number, error.code, error.message, "body.model")
            self._models.add(line.model)
        return None
