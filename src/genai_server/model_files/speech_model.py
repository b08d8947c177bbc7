"""Reads the description of a model that transcribes speech: Whisper (arXiv 2212.04356) as onnxruntime-genai's builder
writes it.

The ids of special tokens come from tokenizer.json. Tokens that a transcript never contains come from the original
model's generation_config.json, if the directory has that file; otherwise from a list in this module.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.json_file import read_object

_CONFIG = "genai_config.json"
_TOKENIZER = "tokenizer.json"
_KIND = "whisper"
# The architecture that the original model's config.json names.
ARCHITECTURE = "WhisperForConditionalGeneration"
# How recordings are prepared, in the library's words.
AUDIO_PROCESSOR = "audio_processor_config.json"
# A file of the original model, which a directory may lack.
GENERATION = "generation_config.json"
# What the library makes of a window, [1, mels, frames].
FEATURES = "audio_features"
# Hz of the recordings that speech models read.
SAMPLE_RATE = 16_000
# A file that claims to have fewer bytes for each second than the slowest codecs need is not believed.
MIN_BYTES_PER_SECOND = 300
# Seconds between two timestamps.
TIME_PRECISION = 0.02
_WINDOW_SECONDS = 30.0
# The end of text of the models for English only, which have no tokens for languages and tasks in their prompts.
_ENGLISH_END = 50_256
# What Whisper's authors keep out of transcripts, unless generation_config.json says it: punctuation that annotates
# sounds or speakers, and musical notes. Of the notes, even the first of several tokens is left out.
_SYMBOLS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~',
    *"「」『』",
    *["<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"],
    *["♪♪", "♪♪♪"],
]
_NOTES = "♩♪♫♬♭♮♯"
# With these a transcript does not begin a word, but may contain them.
_STARTS = (" -", " '")
# The first of the tokens for times.
FIRST_TIME = "<|0.00|>"
_MAX_TOKENS = 2**31


class SpeechModel(Struct, frozen=True):
    """Description of a speech model, read from its directory. Fields that name a token have its id."""

    directory: Path
    # Seconds of a recording that the model reads at once.
    window_seconds: float
    start_of_transcript: int
    end_of_text: int
    # The token before the text of earlier windows, if a prompt has this text.
    start_of_previous: int
    # The token that is likely after `start_of_transcript` if the window has no speech.
    no_speech: int
    transcribe: int
    translate: int
    # The token before a transcript without timestamps.
    no_timestamps: int
    # The timestamps of 0.00, 0.02, … seconds have ascending ids from here on.
    first_timestamp: int
    # The tokens of languages by their codes, such as "en". Empty for a model that knows only English, whose prompts
    # have neither language nor task.
    languages: dict[str, int]
    # Maximum number of tokens of prompt and transcript together.
    context_length: int
    # The tokens that a transcript never contains.
    suppressed: list[int]


def transcribes(directory: Path) -> bool:
    """Whether the model in a directory transcribes speech. False if genai_config.json cannot be read."""
    try:
        return _has_kind(read_object(directory / _CONFIG))
    except ModelDirectoryError:
        return False


def read_speech_model(directory: Path) -> SpeechModel | None:
    """Return the description of the speech recognition model in a directory; None if the model there does not
    transcribe.

    Raises ModelDirectoryError, which names the file, if a configuration is not valid.
    """
    config = read_object(directory / _CONFIG)
    if not _has_kind(config):
        return None
    try:
        return _read(directory, config["model"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ModelDirectoryError(f"a configuration in {directory} lacks or has a wrong value for {error}") from None


def _has_kind(config: Mapping[str, Any]) -> bool:
    model = config.get("model")
    return isinstance(model, dict) and model.get("type") == _KIND


def _read(directory: Path, model: Mapping[str, Any]) -> SpeechModel:
    tokenizer, generation = read_object(directory / _TOKENIZER), read_object(directory / GENERATION)
    added = {str(token["content"]): int(token["id"]) for token in tokenizer.get("added_tokens") or ()}
    if any(not 0 <= id < _MAX_TOKENS for id in added.values()):
        raise ModelDirectoryError(f"{directory / _TOKENIZER} has a token with a wrong id")

    def token(*names: str) -> int:
        for name in names:
            if name in added:
                return added[name]
        raise ModelDirectoryError(f"{directory / _TOKENIZER} has no token {names[0]}, which a model for speech needs")

    end = token("<|endoftext|>")
    tasks = token("<|transcribe|>"), token("<|translate|>")
    start = token("<|startoftranscript|>")
    is_multilingual = generation.get("is_multilingual", end != _ENGLISH_END)
    # They lie between the start and the tasks, in both orders of these.
    between = range(start + 1, min(tasks))
    languages = {name.strip("<|>"): id for name, id in added.items() if id in between} if is_multilingual else {}
    vocabulary = tokenizer["model"]["vocab"]
    never = generation.get("suppress_tokens")
    if never is None:
        never = _non_speech_tokens(vocabulary)
    limit = int(model.get("vocab_size") or _MAX_TOKENS)
    if strange := [id for id in never if not 0 <= int(id) < limit]:
        raise ModelDirectoryError(
            f"{directory / GENERATION} suppresses the token {strange[0]}, which is not among the model's {limit}"
        )
    first_timestamp = token(FIRST_TIME)
    special = {id for name, id in added.items() if id < first_timestamp and name.startswith("<|")} - {end}
    return SpeechModel(
        directory,
        _window_seconds(directory),
        start,
        end,
        token("<|startofprev|>"),
        token("<|nospeech|>", "<|nocaptions|>"),
        *tasks,
        token("<|notimestamps|>"),
        first_timestamp,
        languages,
        int(model["context_length"]),
        sorted(special.union(map(int, never)) - {end}),
    )


def _window_seconds(directory: Path) -> float:
    """Return the length in seconds to which onnxruntime-genai's audio processor pads or cuts every recording."""
    steps = read_object(directory / AUDIO_PROCESSOR).get("feature_extraction", {}).get("sequence", [])
    for step in steps:
        seconds = step.get("operation", {}).get("attrs", {}).get("chunk_size")
        if seconds is not None:
            return float(seconds)
    return _WINDOW_SECONDS


def _non_speech_tokens(vocabulary: Mapping[str, int]) -> list[int]:
    """Return the ids of the tokens for symbols that are no speech (`_SYMBOLS`, `_NOTES`, `_STARTS`).

    Most symbols count both alone and after a space. `vocabulary` has the ids of the tokens of a byte-level BPE.
    """
    tokens = set()
    for symbol in _SYMBOLS:
        tokens |= {vocabulary[text] for text in _spelled(symbol) if text in vocabulary}
    for note in _NOTES:
        for text in _spelled(note):
            known = (text[:length] for length in range(len(text), 1, -1) if text[:length] in vocabulary)
            tokens |= {vocabulary[first] for first in list(known)[:1]}
    tokens |= {vocabulary[text] for text in map(_byte_level, _STARTS) if text in vocabulary}
    return sorted(tokens)


def _spelled(symbol: str) -> Iterable[str]:
    return _byte_level(symbol), _byte_level(" " + symbol)


def _byte_level(text: str) -> str:
    """Return a text as a byte-level BPE vocabulary writes it: one printable character for each byte of UTF-8."""
    return "".join(BYTE_CHARACTERS[byte] for byte in text.encode())


def _characters() -> list[str]:
    """Return the character by which GPT-2's vocabulary writes each of the 256 bytes (`bytes_to_unicode`): the byte's
    character in Latin-1 if that is printable, otherwise a character from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


BYTE_CHARACTERS = _characters()


def longest_audio(num_bytes: int, max_seconds: int) -> int:
    """Return the number of seconds that an audio file of `num_bytes` bytes can have at most, but no more than
    `max_seconds`.
    """
    return min(max_seconds, num_bytes // MIN_BYTES_PER_SECOND + 1)
