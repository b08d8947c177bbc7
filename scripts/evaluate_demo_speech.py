"""Let a model for speech transcribe sentences that espeak-ng speaks, and print the word error rates.

Neither the sentences nor the voices are those of the training. The library's Generator transcribes, or with --url a
running server.
"""

from __future__ import annotations

import argparse
import io
import json
import urllib.request
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Protocol

from _models.card import write_lines
from _models.environment import REPOSITORY, ensure_environment
from _models.spoken_text import sentence, word_errors

if TYPE_CHECKING:
    import numpy as np

SEED = 77  # of sentences, voices and noise
ASKED = 100  # recordings of each condition
SAMPLE_RATE = 16_000
# Seconds of speech that a window holds.
FULL_SECONDS = 29
# A recording, its rate in Hz, and start, end (in seconds) and text of the sentences in it.
Spoken = tuple["np.ndarray", int, list[tuple[float, float, str]]]


@dataclass(frozen=True)
class Heard:
    """A transcript; `segments` are start and end in seconds, if they were asked for."""

    text: str
    segments: list[tuple[float, float]]


class Transcriber(Protocol):
    """Writes down what a WAV file says."""

    def __call__(self, encoded: bytes, *, timed: bool) -> Heard: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = REPOSITORY / "models" / "demo-speech"
    parser.add_argument("directory", type=Path, nargs="?", default=default, metavar="DIR")
    parser.add_argument("--url", help="of a running server, such as http://127.0.0.1:8000, which transcribes instead")
    parser.add_argument("--number", type=int, default=ASKED, help=f"of recordings of each condition (default {ASKED})")
    parser.add_argument("--only", help="one condition of the table")
    parser.add_argument("--wrong", action="store_true", help="print every wrong transcript")
    parser.add_argument("--card", action="store_true", help="write the table into the directory's README.md")
    arguments = parser.parse_args()
    ensure_environment()
    from _models.speech_sounds import check_espeak

    check_espeak()
    transcribe: Transcriber = Server(arguments.url) if arguments.url else Library(arguments.directory)
    rows = ["| condition | words | word error rate |", "|---|---:|---:|"]
    for condition, record in CONDITIONS.items():
        if arguments.only in (None, condition):
            rows.append(examine(condition, record, transcribe, arguments.number, wrong=arguments.wrong))
    if arguments.only in (None, NOTHING):
        empty = count_empty(transcribe, arguments.number, wrong=arguments.wrong)
        rows += ["", f"Of {arguments.number} recordings of noise or silence alone, {empty} have an empty transcript."]
        print(rows[-1])
    if arguments.card and not arguments.only:
        write_lines(arguments.directory / "README.md", rows)


def examine(
    condition: str, record: Callable[[Random], Spoken], transcribe: Transcriber, number: int, *, wrong: bool
) -> str:
    """A row of the table, which is also printed."""
    from _models.speech_sounds import wav

    errors = words = 0
    late: list[float] = []
    rng = Random(f"{SEED} {condition}")
    for _ in range(number):
        samples, rate, spoken = record(rng)
        heard = transcribe(wav(samples, rate), timed=len(spoken) > 1)
        expected = " ".join(text for _, _, text in spoken)
        missed, all_words = word_errors(expected, heard.text)
        errors, words = errors + missed, words + all_words
        if missed and wrong:
            print(f"    {expected!r} -> {heard.text!r}")
        if len(heard.segments) == len(spoken):
            pairs = zip(heard.segments, spoken, strict=True)
            late += [abs(found - at) for segment, said in pairs for found, at in zip(segment, said[:2], strict=True)]
    print(f"{condition:<32}{words:>6} words{100 * errors / words:>7.1f} % wrong", flush=True)
    if late:
        print(f"    times differ by {sum(late) / len(late):.2f} s on average, {max(late):.2f} s at most")
    return f"| {condition} | {words} | {100 * errors / words:.1f} % |"


def count_empty(transcribe: Transcriber, number: int, *, wrong: bool) -> int:
    """How many recordings without speech have an empty transcript."""
    import numpy as np
    from _models.speech_sounds import noise, wav

    numbers, empty = np.random.default_rng(SEED), 0
    for at in range(number):
        samples = noise(SAMPLE_RATE * (1 + at % 8), numbers) * np.float32(0.0 if at % 5 == 0 else 0.02 * (1 + at % 4))
        heard = transcribe(wav(samples, SAMPLE_RATE), timed=False).text.strip()
        empty += not heard
        if heard and wrong:
            print(f"    nothing -> {heard!r}")
    return empty


def clean(rng: Random) -> Spoken:
    from _models.speech_sounds import random_voice, speak

    text = sentence(rng, held_out=True)
    samples = speak(text, random_voice(rng, held_out=True))
    return samples, SAMPLE_RATE, [(0.0, len(samples) / SAMPLE_RATE, text)]


def noisy(rng: Random) -> Spoken:
    import numpy as np
    from _models.speech_sounds import with_noise

    samples, rate, spoken = clean(rng)
    return with_noise(samples, 10.0, np.random.default_rng(rng.getrandbits(32))), rate, spoken


def over_a_telephone(rng: Random) -> Spoken:
    from _models.speech_sounds import telephone

    samples, rate, spoken = clean(rng)
    return telephone(samples)[::2], rate // 2, spoken


def two_sentences(rng: Random) -> Spoken:
    import numpy as np

    (first, rate, (said,)), (second, _, (other,)) = clean(rng), clean(rng)
    pause = np.zeros(int(rng.uniform(0.5, 2.0) * rate), np.float32)
    start = (len(first) + len(pause)) / rate
    return np.concatenate([first, pause, second]), rate, [said, (start, start + other[1], other[2])]


def a_full_window(rng: Random) -> Spoken:
    """Sentences with short pauses, as many as a window holds."""
    import numpy as np

    parts: list[np.ndarray] = []
    spoken: list[tuple[float, float, str]] = []
    length = 0
    while True:
        samples, rate, ((_, _, text),) = clean(rng)
        if length + len(samples) > FULL_SECONDS * rate:
            return np.concatenate(parts), rate, spoken
        spoken.append((length / rate, (length + len(samples)) / rate, text))
        parts += [samples, np.zeros(int(rng.uniform(0.2, 0.8) * rate), np.float32)]
        length += len(parts[-2]) + len(parts[-1])


NOTHING = "no speech"
CONDITIONS: dict[str, Callable[[Random], Spoken]] = {
    "clean": clean,
    "noise, 10 dB below the speech": noisy,
    "telephone, 8 kHz": over_a_telephone,
    "two sentences with a pause": two_sentences,
    "a window full of sentences": a_full_window,
}


class Library:
    """The model directory as onnxruntime-genai runs it, greedily."""

    def __init__(self, directory: Path) -> None:
        import onnxruntime_genai as og

        self._og = og
        self._model = og.Model(str(directory))
        self._processor = self._model.create_multimodal_processor()
        self._tokenizer = og.Tokenizer(self._model)
        (self._zero,) = self._tokenizer.encode("<|0.00|>")
        (self._end,) = self._tokenizer.encode("<|endoftext|>")

    def __call__(self, encoded: bytes, *, timed: bool) -> Heard:
        prompt = "<|startoftranscript|><|en|><|transcribe|>" + ("" if timed else "<|notimestamps|>")
        params = self._og.GeneratorParams(self._model)
        params.set_search_options(do_sample=False, num_beams=1, max_length=224, batch_size=1)
        generator = self._og.Generator(self._model, params)
        generator.set_inputs(self._processor([prompt], audios=self._og.Audios.open_bytes(not_slow(encoded))))
        tokens: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        times = [0.02 * (token - int(self._zero)) for token in tokens if token >= self._zero]
        text = self._tokenizer.decode([token for token in tokens if token < self._end])
        return Heard(text.strip(), list(zip(times[::2], times[1::2], strict=False)))


def not_slow(encoded: bytes) -> bytes:
    """A WAV file at 16 kHz or more; onnxruntime-genai does not read others."""
    import numpy as np
    from _models.speech_sounds import resampled, wav

    with wave.open(io.BytesIO(encoded)) as file:
        rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    if rate >= SAMPLE_RATE:
        return encoded
    return wav(resampled(samples.astype(np.float32) / 32768, rate), SAMPLE_RATE)


class Server:
    """`/v1/audio/transcriptions` of a running server."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/v1/audio/transcriptions"

    def __call__(self, encoded: bytes, *, timed: bool) -> Heard:
        mark = "a-mark-between-parts"
        fields = {"response_format": "verbose_json", "temperature": "0"} if timed else {"response_format": "json"}
        parts = [f'--{mark}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items()]
        head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        body = "".join(parts).encode() + head.encode() + encoded + f"\r\n--{mark}--\r\n".encode()
        request = urllib.request.Request(
            self._url, body, {"Content-Type": f"multipart/form-data; boundary={mark}"}, method="POST"
        )
        with urllib.request.urlopen(request) as response:
            found = json.load(response)
        return Heard(found["text"], [(part["start"], part["end"]) for part in found.get("segments", [])])


if __name__ == "__main__":
    main()
