"""Hashes of files' contents, in the forms that hubs use."""

import hashlib
from pathlib import Path

_PIECE = 4 * 1024 * 1024


def has_digest(path: Path, digest: str) -> bool:
    """Whether a file has the digest `sha256:…`, or `git:…` for the hash of a git blob. Raises OSError."""
    kind, _, expected = digest.partition(":")
    return digest_of(path, kind).partition(":")[2] == expected.lower()


def digest_of(path: Path, kind: str) -> str:
    """The digest of a file, of the kind `sha256` or `git`. Raises OSError."""
    found = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return f"{kind}:{found.hexdigest()}"
