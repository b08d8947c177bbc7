"""Chooses the profile sessions to remove if the folder is full or they are too old: whole sessions, oldest first.

Only files that a manifest names are ever removed. Other files in the folder count, but are kept.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from genai_server.profiles.manifest import Manifest, find_manifests

# Seconds after its last line, a session without an end is taken to be left by an engine that died.
ABANDONED_AFTER = 3600.0


def removable(root: Path, now: float, *, keep: Collection[Path] = ()) -> list[Manifest]:
    """The profile sessions of all devices that have ended or were abandoned, oldest first, except those in `keep`.

    `keep` has paths of manifests. `now` is Unix time.
    """
    try:
        manifests = find_manifests(root)
    except OSError:  # the folder does not exist yet
        return []
    return [manifest for manifest in manifests if manifest.path not in keep and not is_open(manifest, now)]


def is_open(manifest: Manifest, now: float) -> bool:
    """Whether an engine may still write to a profile session: it has no end, and was changed recently.

    A session whose plan waits for an event, such as a slow token, stays open as long as the plan allows. `now` is Unix
    time.
    """
    plan, last = manifest.session.plan, manifest.changed
    if plan is not None:
        last = max(last, manifest.session.started + plan.max_seconds)
    return manifest.end is None and now - last < ABANDONED_AFTER


def remove(manifest: Manifest) -> None:
    """Remove a session: first its files, then its manifest. Raises OSError if one cannot be removed."""
    for path in [*manifest.files, manifest.path]:
        path.unlink(missing_ok=True)


def remove_all(manifests: Iterable[Manifest]) -> None:
    """Remove sessions, and continue after one that cannot be removed."""
    for manifest in manifests:
        with suppress(OSError):
            remove(manifest)


def end_of(manifest: Manifest) -> float:
    """When a session that is no longer open ended, as Unix time."""
    return manifest.changed if manifest.end is None else manifest.end.ended
