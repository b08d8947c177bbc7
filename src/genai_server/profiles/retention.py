"""Chooses which profile sessions to remove when the folder of profiles is full or sessions are too old: always whole
sessions, the oldest first.

Only files that a manifest names are ever removed. Other files count towards the size of the folder but are kept.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from genai_server.profiles.manifest import Manifest, find_manifests

# Seconds after its last line, a session without an end is taken to be left by an engine that died.
ABANDONED_AFTER = 3600.0


def removable(root: Path, now: float, *, keep: Collection[Path] = ()) -> list[Manifest]:
    """Return the manifests of sessions that may be removed, oldest first: those of all devices that have ended or were
    abandoned, without those whose paths are in `keep`.

    `now` is Unix time.
    """
    try:
        manifests = find_manifests(root)
    except OSError:  # the folder does not exist yet
        return []
    return [manifest for manifest in manifests if manifest.path not in keep and not is_open(manifest, now)]


def is_open(manifest: Manifest, now: float) -> bool:
    """Whether an engine may still write to a profile session: the session has no end, and its manifest was changed
    within the last ABANDONED_AFTER seconds.

    A session whose plan waits for an event, such as a slow token, counts as changed until the longest duration that the
    plan allows is over. `now` is Unix time.
    """
    plan, last = manifest.session.plan, manifest.changed
    if plan is not None:
        last = max(last, manifest.session.started + plan.max_seconds)
    return manifest.end is None and now - last < ABANDONED_AFTER


def remove(manifest: Manifest) -> None:
    """Remove a session's files and then its manifest. Raises OSError if one of them cannot be removed."""
    for path in [*manifest.files, manifest.path]:
        path.unlink(missing_ok=True)


def remove_all(manifests: Iterable[Manifest]) -> None:
    """Remove several sessions. A session that cannot be removed is skipped."""
    for manifest in manifests:
        with suppress(OSError):
            remove(manifest)


def end_of(manifest: Manifest) -> float:
    """Return when a session that is no longer open (`is_open`) ended, as Unix time; for an abandoned session the time
    of its last change.
    """
    return manifest.changed if manifest.end is None else manifest.end.ended
