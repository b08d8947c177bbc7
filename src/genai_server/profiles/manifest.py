"""The manifest of a profile session, a recording of some of an engine's forward passes: the file that says which
profile file of ONNX Runtime belongs to which token of which request. Also finds and removes sessions.

A manifest is a text file next to the profiles with one JSON object per line: the session, then a line for each file as
it appears, and the end. So it is complete up to its last line, however the engine ended. Durations are in seconds;
points in time are Unix time.

If the folder is full or sessions are too old, whole sessions are removed, oldest first. Only files that a manifest
names are ever removed. Other files in the folder count, but are kept.
"""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from genai_server.messages.admin import Profiled, ProfilePlan

SUFFIX = ".manifest.jsonl"
PREFILL, DECODE = "prefill", "decode"


class Session(Struct, frozen=True, tag="session"):
    """The first line of a profile session's manifest: the session's id, when it began, and the circumstances under
    which it was recorded, such as device, model, threads and versions.
    """

    id: str
    prefix: str
    started: float
    device: str = ""
    model: str = ""
    # Threads of an operator; 0 if unknown.
    threads: int = 0
    # Usable cores; 0 if unknown.
    cores: int = 0
    # Whether waiting threads spin, and so appear to work.
    spins: bool = True
    versions: dict[str, str] = {}
    # The plan that the session follows; None if profiling was switched on by the runtime option enable_profiling.
    plan: ProfilePlan | None = None


class PassRecord(Struct, frozen=True, tag="pass"):
    """The line of a manifest for one profiled forward pass: the name of the file with its profile, the request and
    token, and its duration. Points in time are Unix time, durations are in seconds.
    """

    file: str
    request_id: str
    phase: str
    # The output token, counted from 0, that the pass leads to. A decode step or a prompt's last chunk yields it.
    token: int
    # Position of the first token that the pass read.
    position: int
    num_tokens: int
    started: float
    # Elapsed time.
    seconds: float
    # CPU time of all threads of the process.
    cpu_seconds: float


class End(Struct, frozen=True, tag="end"):
    """The last line of a manifest: when the profile session ended, and why."""

    ended: float
    # Why the session ended; None if an operator has ended it.
    reason: str | None = None
    # The results of the session's plan; None if it had none.
    profiled: Profiled | None = None


Line = Session | PassRecord | End
_LINES = msgspec.json.Decoder(Line)


@dataclass(frozen=True)
class Manifest:
    """The contents of a manifest file, which describes one profile session. While the session is recording, `end` is
    None and `passes` is incomplete.
    """

    path: Path
    session: Session
    passes: list[PassRecord]
    end: End | None
    # When the file was last changed, as Unix time.
    changed: float

    @property
    def files(self) -> list[Path]:
        """The paths of the profile files that ONNX Runtime has written in this session; some of the files may no longer
        exist.
        """
        return [self.path.parent / record.file for record in self.passes]


def encode_line(line: Line) -> bytes:
    """Return a line of a manifest file as JSON in bytes, including the line break."""
    return msgspec.json.encode(line) + b"\n"


def read_manifest(path: Path) -> Manifest | None:
    """Read the manifest file at `path` and return its contents. Returns None if the file does not begin with a session,
    and raises OSError if it cannot be read.

    Incomplete lines, and lines that name a file in another folder, are ignored.
    """
    session, passes, end = None, [], None
    with path.open("rb") as file:
        changed = os.fstat(file.fileno()).st_mtime
        for text in file:
            try:
                line = _LINES.decode(text)
            except msgspec.DecodeError:
                continue
            match line:
                case Session():
                    session = session or line
                case PassRecord() if _is_plain(line.file):
                    passes.append(line)
                case End():
                    end = line
    return None if session is None else Manifest(path, session, passes, end, changed)


def find_manifests(root: Path) -> list[Manifest]:
    """Return the manifests of all profile sessions in a folder and in the folders directly below it, oldest first.
    Raises OSError if there is no such folder.
    """
    list(root.iterdir())
    manifests = []
    for path in [*root.glob(f"*{SUFFIX}"), *root.glob(f"*/*{SUFFIX}")]:
        try:
            manifest = read_manifest(path)
        except OSError:  # removed in the meantime, or not readable
            continue
        if manifest is not None:
            manifests.append(manifest)
    return sorted(manifests, key=lambda manifest: (manifest.session.started, manifest.session.id))


def _is_plain(name: str) -> bool:
    return name.endswith(".json") and not any(sign in name for sign in "/\\:\0")


# Seconds after its last line, a session without an end is taken to be left by an engine that died.
ABANDONED_AFTER = 3600.0


def removable(root: Path, now: float, *, keep: Collection[Path] = ()) -> list[Manifest]:
    """Return the manifests of those profile sessions below the folder `root` that may be removed, oldest first: those
    that have ended or were abandoned, except those whose manifest paths are in `keep`.

    `now` is the current Unix time. Nothing is removed. The result is empty if the folder does not exist.
    """
    try:
        manifests = find_manifests(root)
    except OSError:  # the folder does not exist yet
        return []
    return [manifest for manifest in manifests if manifest.path not in keep and not is_open(manifest, now)]


def is_open(manifest: Manifest, now: float) -> bool:
    """Return whether an engine may still write to a profile session: the session has no end, and its manifest was
    changed within the last ABANDONED_AFTER seconds.

    A session whose plan waits for an event, such as a slow token, counts as changed until the longest duration that the
    plan allows is over. `now` is the current Unix time.
    """
    plan, last = manifest.session.plan, manifest.changed
    if plan is not None:
        last = max(last, manifest.session.started + plan.max_seconds)
    return manifest.end is None and now - last < ABANDONED_AFTER


def remove(manifest: Manifest) -> None:
    """Remove the profile files that a manifest names, and then the manifest file itself. Raises OSError if one of them
    cannot be removed.
    """
    for path in [*manifest.files, manifest.path]:
        path.unlink(missing_ok=True)


def remove_all(manifests: Iterable[Manifest]) -> None:
    """Remove several profile sessions: their profile files and manifest files. A session that cannot be removed is
    skipped.
    """
    for manifest in manifests:
        with suppress(OSError):
            remove(manifest)


def end_of(manifest: Manifest) -> float:
    """Return when a profile session that is no longer open (`is_open`) ended, as Unix time. For an abandoned session,
    this is the time of its last change.
    """
    return manifest.changed if manifest.end is None else manifest.end.ended
