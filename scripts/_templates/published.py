"""Chat templates of published models, as llama.cpp keeps them among its sources, which are part of a Python package."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
_FOLDER = "/models/templates/"
# In seconds. The package has 77 MB.
_TIMEOUT = 300


class NotAvailable(OSError):
    """The sources of llama.cpp cannot be downloaded here; the text says why."""


def published_templates() -> Path:
    """The folder of the templates, which are downloaded once and kept outside the repository. Raises NotAvailable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = cache / "genai-server" / PACKAGE.replace("==", "-")
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            unpacked = Path(folder) / "templates"
            unpacked.mkdir()
            _unpack(download(Path(folder)), unpacked)
            try:
                unpacked.rename(kept)
            except OSError:  # another process was faster
                if not kept.is_dir():
                    raise
    return kept


def download(folder: Path) -> Path:
    """Download the archive with llama.cpp's sources to a folder, and return its path. Raises NotAvailable."""
    # Metadata of sources are computed by their build system, which pip would install first.
    options = ["--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, PACKAGE]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotAvailable(f"pip cannot download {PACKAGE}: {said.strip().splitlines()[-1]}") from None
    return next(folder.glob("*.tar.gz"))


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as sources:
        for member in sources:
            if member.isfile() and _FOLDER in member.name and member.name.endswith(".jinja"):
                member.name = Path(member.name).name
                sources.extract(member, folder, filter="data")
