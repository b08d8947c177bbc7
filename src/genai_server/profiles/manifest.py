"""The manifest of a profile session: which of ONNX Runtime's files is which token of which request.

A text file beside them, one JSON object a line: the session first, then a line for each file as it appears, and the
end. So it is whole up to where it was written to, however the engine ended. Times are seconds, moments Unix time.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from genai_server.profile_plan import Profiled, ProfilePlan

SUFFIX = ".manifest.jsonl"
PREFILL, DECODE = "prefill", "decode"


class Session(Struct, frozen=True, tag="session"):
    """What was profiled with what: `threads` of an operator, on so many `cores`, 0 where unknown; with `spins` a
    thread that waits seems to work. `plan` is None where the runtime option was switched by hand.
    """

    id: str
    prefix: str
    started: float
    device: str = ""
    model: str = ""
    threads: int = 0
    cores: int = 0
    spins: bool = True
    versions: dict[str, str] = {}
    plan: ProfilePlan | None = None


class PassRecord(Struct, frozen=True, tag="pass"):
    """A file, and the forward pass that it tells of.

    The pass read `num_tokens` from `position` on, towards output token `token` (counted from 0), which it gave if it
    was a decode step or the last piece of the prompt. `seconds` passed meanwhile, of which the process's threads
    computed `cpu_seconds` together.
    """

    file: str
    request_id: str
    phase: str
    token: int
    position: int
    num_tokens: int
    started: float
    seconds: float
    cpu_seconds: float


class End(Struct, frozen=True, tag="end"):
    """Nothing more comes; `reason` says why, if nobody asked for it, `profiled` what has come of a plan."""

    ended: float
    reason: str | None = None
    profiled: Profiled | None = None


Line = Session | PassRecord | End
_LINES = msgspec.json.Decoder(Line)


@dataclass(frozen=True)
class Manifest:
    """A manifest as far as it was written; `changed` is when that last was."""

    path: Path
    session: Session
    passes: list[PassRecord]
    end: End | None
    changed: float

    @property
    def files(self) -> list[Path]:
        """ONNX Runtime's files, of which some may be gone."""
        return [self.path.parent / record.file for record in self.passes]


def encode_line(line: Line) -> bytes:
    """A line of a manifest."""
    return msgspec.json.encode(line) + b"\n"


def read_manifest(path: Path) -> Manifest | None:
    """A manifest, or None if there is no session in it. Raises OSError.

    A line that was not written to its end, or whose file would lie in another folder, does not count.
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
    """The manifests in a folder and the folders right below it, oldest first. Raises OSError if there is no folder."""
    list(root.iterdir())
    found = []
    for path in [*root.glob(f"*{SUFFIX}"), *root.glob(f"*/*{SUFFIX}")]:
        try:
            manifest = read_manifest(path)
        except OSError:  # removed meanwhile, or not ours to read
            continue
        if manifest is not None:
            found.append(manifest)
    return sorted(found, key=lambda manifest: (manifest.session.started, manifest.session.id))


def _is_plain(name: str) -> bool:
    return name.endswith(".json") and not any(sign in name for sign in "/\\:\0")
