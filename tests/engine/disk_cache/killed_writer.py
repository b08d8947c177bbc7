"""Writes prefixes into a folder in processes that are killed at random points, and reads them after each kill.

Prints how many kills came in mid-write, and ends with an error if anything that is found differs from what was written.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from genai_server.engine.disk_cache_files import ArrayLayout, Segment, SegmentFolder, root_key, segment_key

ROOT = root_key(None, is_long=False)
TOKENS, VALUES = 64, 4096
LAYOUT = [ArrayLayout((TOKENS, VALUES), np.float32)]
MAX_BYTES = 20 * TOKENS * VALUES * 4
_MAX_FACTOR = 10


def values(tokens: list[int]) -> np.ndarray:
    return np.repeat(np.array(tokens, np.float32)[:, None], VALUES, axis=1)


def prefix(chance: random.Random) -> list[int]:
    """One of nine prompts of three segments, three of which begin alike."""
    kind = chance.randrange(3)
    return [*([kind] * TOKENS), *([10 + kind] * TOKENS), *([20 + chance.randrange(3)] * TOKENS)]


def write(folder: SegmentFolder, tokens: list[int]) -> None:
    parent, written = ROOT, []
    with folder.writing(3 * TOKENS * VALUES * 4):
        for start in range(0, len(tokens), TOKENS):
            part = tokens[start : start + TOKENS]
            segment = Segment(parent, TOKENS, segment_key(parent, part))
            if not folder.has(segment):
                folder.write(segment, part, [values(part)])
            written.append(segment)
            parent = segment.key
    folder.touch(written, states=False)


def check(root: Path) -> None:
    folder = SegmentFolder(root, "model", MAX_BYTES)
    for kind in range(3):
        for end in range(3):
            tokens = [*([kind] * TOKENS), *([10 + kind] * TOKENS), *([20 + end] * TOKENS)]
            start = 0
            for segment in folder.longest(ROOT, tokens, states=False):
                part = tokens[start : start + TOKENS]
                found = folder.read(segment, part, LAYOUT)
                assert found is not None, "a file is damaged"
                assert (found[0] == values(part)).all(), "a file has other values"
                start += TOKENS
    size = sum(path.stat().st_size for path in (root / "model").glob("*.kv"))
    assert size <= MAX_BYTES, size


def main(root: Path, num_kills: int) -> None:
    chance = random.Random(3)
    num_half = number = 0
    # On a busy machine, a process may be killed before it writes anything.
    while number < num_kills or (not num_half and number < _MAX_FACTOR * num_kills):
        number += 1
        seed = chance.random()
        child = os.fork()
        if child == 0:
            own = random.Random(seed)
            folder = SegmentFolder(root, "model", MAX_BYTES)
            while True:
                write(folder, prefix(own))
        time.sleep(chance.uniform(0.001, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        num_half += (root / ".writing").exists()
        check(root)
        # Something is left to write for the next one.
        if stored := sorted((root / "model").glob("*.kv")):
            chance.choice(stored).unlink()
    sys.stdout.write(f"{num_half}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
