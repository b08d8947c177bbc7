"""Make the recordings that tests have transcribed, of sentences and voices that the demo model was not trained with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from _models.environment import REPOSITORY, ensure_environment

OUT = REPOSITORY / "tests" / "recordings"
# Rate in Hz, voice of espeak-ng and its speed, sentences.
RECORDINGS: dict[str, tuple[int, str, int, list[str]]] = {
    "book.wav": (16_000, "en-gb+m7", 150, ["The book is purple."]),
    "phone_number.wav": (8_000, "en-us+f5", 140, ["My phone number is six eight eight."]),
    "two_sentences.wav": (
        8_000,
        "en-gb+f5",
        160,
        ["Turn on the printer in the office.", "Set a timer for ten seconds."],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the recordings for tests")
    arguments = parser.parse_args()
    ensure_environment()
    from _training.speech_recordings import record
    from _training.speech_sounds import check_espeak

    check_espeak()
    arguments.out.mkdir(parents=True, exist_ok=True)
    transcripts = {}
    for name, (rate, voice, speed, sentences) in RECORDINGS.items():
        encoded, segments = record(rate, voice, speed, sentences)
        (arguments.out / name).write_bytes(encoded)
        transcripts[name] = {
            "text": " ".join(sentences),
            "segments": [
                {"start": round(start, 2), "end": round(end, 2), "text": text}
                for (start, end), text in zip(segments, sentences, strict=True)
            ],
        }
        print(f"{name}: {len(encoded):,} bytes")
    (arguments.out / "transcripts.json").write_text(json.dumps(transcripts, indent=2) + "\n")


if __name__ == "__main__":
    main()
