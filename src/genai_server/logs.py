"""Where the log goes and what it looks like, the same in every process."""

import logging


def configure_logging(level: str) -> None:
    """Log to standard error, one line each."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    for noisy in ("asyncio", "sse_starlette"):
        logging.getLogger(noisy).setLevel(max(logging.INFO, logging.getLevelName(level.upper())))
