"""Reads the profiles in a folder, with or without manifests (manifest.py)."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from genai_server.errors import ProfileNotFound, quoted
from genai_server.profiles.forward_pass import ForwardPass, Profile
from genai_server.profiles.manifest import Manifest, find_manifests
from genai_server.profiles.trace_file import read_runs

_STAMP = re.compile(r"_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)_(\d{3})\.json$")


def read_profile(path: Path, session: str | None = None) -> Profile:
    """Return the profile of one session in a folder, or in a folder directly below it.

    `session` is the id of the session; the last session by default. If no session has a manifest, all files of the
    folder are read as one profile. `path` may also be a single file that ONNX Runtime has written. Raises
    ProfileNotFound if there is no such session or no readable profile.
    """
    if path.is_file():
        return _without_manifest(path.name, path.parent, [path])
    manifest = find_session(path, session)
    return (
        _without_manifest(path.resolve().name, path, list(path.glob("*.json")))
        if manifest is None
        else read_session(manifest)
    )


def find_session(root: Path, session: str | None = None) -> Manifest | None:
    """Return the manifest of the session with the id `session`, or of the last session if that is None; None if there
    is no session at all.

    Raises ProfileNotFound if the folder does not exist or has no session with this id.
    """
    try:
        manifests = find_manifests(root)
    except FileNotFoundError:
        raise ProfileNotFound(f"there is no folder {root}; it is made when a profile is written") from None
    except OSError as error:
        raise ProfileNotFound(f"{root}: {error.strerror}") from None
    found = [manifest for manifest in manifests if session in (None, manifest.session.id)]
    if session is not None and not found:
        known = ", ".join(manifest.session.id for manifest in manifests) or "none"
        raise ProfileNotFound(f"no session {quoted(session)} in {root}; it has: {known}", param="session")
    return found[-1] if found else None


def read_session(manifest: Manifest) -> Profile:
    """Return the profile that a manifest describes. Raises ProfileNotFound if none of its files can be read."""
    unread: dict[str, str] = {}
    passes = []
    for record in manifest.passes:
        for run in _runs(manifest.path.parent / record.file, unread):
            start = round((record.started - manifest.session.started) * 1e6) + run.start
            found = replace(run, start=start, phase=record.phase, num_tokens=record.num_tokens, record=record)
            passes.append(found)
    profiled = None if manifest.end is None else manifest.end.profiled
    return _profile(Profile(manifest.session.id, manifest.path.parent, passes, manifest.session, unread, profiled))


def _without_manifest(name: str, folder: Path, files: list[Path]) -> Profile:
    """Return the profile of files without a manifest.

    The order is that of the times in ONNX Runtime's file names, which are exact to the millisecond. A file without a
    time in its name follows the file before it without a gap.
    """
    unread: dict[str, str] = {}
    passes: list[ForwardPass] = []
    origin: int | None = None
    for path in sorted(files, key=lambda path: (_begun(path) or 0, path.name)):
        begun, after = _begun(path), passes[-1].start + passes[-1].duration if passes else 0
        origin = begun if origin is None else origin
        offset = after if begun is None or origin is None else max(after, begun - origin)
        passes += [replace(run, start=offset + run.start) for run in _runs(path, unread)]
    return _profile(Profile(name, folder, passes, None, unread))


def _profile(profile: Profile) -> Profile:
    """Return the profile with all starts shifted so that its first pass starts at 0.

    Raises ProfileNotFound if the profile has no pass.
    """
    if not profile.passes:
        reason = "; ".join(f"{name}: {why}" for name, why in list(profile.unread.items())[:3])
        raise ProfileNotFound(f"{profile.name} has no profile of a forward pass{f' ({reason})' if reason else ''}")
    first = min(one.start for one in profile.passes)
    return replace(profile, passes=[replace(one, start=one.start - first) for one in profile.passes])


def _runs(path: Path, unread: dict[str, str]) -> Iterator[ForwardPass]:
    try:
        yield from read_runs(path)
    except (OSError, ValueError) as error:
        unread[path.name] = str(error)


def _begun(path: Path) -> int | None:
    """Return when the recording of a file began, from the file's name, in microseconds since 1970; None if the name has
    no time.
    """
    found = _STAMP.search(path.name)
    if found is None:
        return None
    moment = datetime.strptime(found[1], "%Y-%m-%d_%H-%M-%S")
    return round((moment - datetime(1970, 1, 1)).total_seconds()) * 1_000_000 + int(found[2]) * 1000
