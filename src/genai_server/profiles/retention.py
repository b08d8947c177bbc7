"""Which profile sessions go when there is no more room, or when they are old: whole ones, the oldest first.

Only what a manifest names is ever removed. Other files in the folder count, but are somebody's.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from genai_server.profiles.manifest import Manifest, find_manifests

# A session without an end whose last line is this old was left by an engine that died, in seconds.
ABANDONED_AFTER = 3600.0


def removable(root: Path, now: float, *, keep: Collection[Path] = ()) -> list[Manifest]:
    """The sessions of all devices that nobody writes to any more, oldest first; `keep` are manifests that stay."""
    try:
        manifests = find_manifests(root)
    except OSError:  # there is no folder yet
        return []
    return [manifest for manifest in manifests if manifest.path not in keep and not is_open(manifest, now)]


def is_open(manifest: Manifest, now: float) -> bool:
    """Whether an engine may still write to a session; one with a plan may wait for long."""
    plan, last = manifest.session.plan, manifest.changed
    if plan is not None:
        last = max(last, manifest.session.started + plan.max_seconds)
    return manifest.end is None and now - last < ABANDONED_AFTER


def remove(manifest: Manifest) -> None:
    """Remove a session: its files, and then what names them. Raises OSError if one cannot be removed."""
    for path in [*manifest.files, manifest.path]:
        path.unlink(missing_ok=True)


def remove_all(manifests: Iterable[Manifest]) -> None:
    """Remove sessions; one that cannot be removed does not keep the others."""
    for manifest in manifests:
        with suppress(OSError):
            remove(manifest)


def end_of(manifest: Manifest) -> float:
    """When a session that nobody writes to any more ended."""
    return manifest.changed if manifest.end is None else manifest.end.ended
