"""Fetch the libraries of the web page and of /docs from the npm registry into src/genai_server/web.

usage: .venv/bin/python scripts/vendor_web.py [--update]

Without --update it fetches the pinned versions, and the newest of packages without a pin. It exits with status 1 if the
registry's package has another hash than src/genai_server/web/vendored.json. With --update it fetches the newest
versions, and writes their hashes there.
It needs npm, which checks each package against the registry's own hash.
"""

import argparse
import base64
import fnmatch
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

_WEB = Path(__file__).resolve().parents[1] / "src" / "genai_server" / "web"
_PINS = _WEB / "vendored.json"
_FILES = Path(__file__).with_suffix(".toml")
_IMPORT = re.compile(r'from"preact"')
_SOURCE_MAP = re.compile(r"\n?(//# sourceMappingURL=\S+|/\*# sourceMappingURL=\S+ \*/)\s*$")


def main() -> int:
    """Fetch all packages; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="take the newest versions")
    arguments = parser.parse_args()
    pins: dict[str, Any] = json.loads(_PINS.read_text(encoding="utf-8")) if _PINS.exists() else {}
    found = {}
    for package, members in tomllib.loads(_FILES.read_text(encoding="utf-8")).items():
        pin = None if arguments.update else pins.get(package)
        with tempfile.TemporaryDirectory() as folder:
            archive, version = _pack(package if pin is None else f"{package}@{pin['version']}", Path(folder))
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            if pin is not None and integrity != pin["integrity"]:
                print(f"{package} {version} has {integrity}, and not {pin['integrity']}", file=sys.stderr)
                return 1
            found[package] = {"version": version, "integrity": integrity, "files": _write(archive, package, members)}
        print(f"{package} {version}")
    _PINS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def _pack(spec: str, folder: Path) -> tuple[Path, str]:
    """The package's archive as npm fetched it, and its version."""
    command = ["npm", "pack", "--silent", "--json", spec]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    (about,) = json.loads(done.stdout)
    (archive,) = folder.glob("*.tgz")
    return archive, str(about["version"])


def _write(archive: Path, package: str, members: dict[str, str]) -> dict[str, str]:
    """Write a package's files and its licence; their SHA-256 by their path below the folder of the page."""
    license_name = f"{package.removeprefix('@').replace('/', '-')}.LICENSE"
    license_path = str(Path(next(iter(members.values()))).with_name(license_name))
    written = {}
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        for pattern, target in {**members, "LICENSE": license_path}.items():
            for member in sorted(fnmatch.filter(names, f"package/{pattern}")):
                file = packed.extractfile(member)
                assert file is not None
                name = target + Path(member).name if target.endswith("/") else target
                path = _WEB / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_adapted(file.read(), path.suffix))
                written[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return written


def _adapted(content: bytes, suffix: str) -> bytes:
    """A file's content; scripts and styles with the paths of this project and without the address of a source map."""
    if suffix not in (".js", ".css"):
        return content
    return _SOURCE_MAP.sub("\n", _IMPORT.sub('from"./preact.js"', content.decode())).encode()


if __name__ == "__main__":
    sys.exit(main())
