"""Reads from a model's directory whether and how it takes audio or images: `read_speech_model` for models that
transcribe speech, which are Whisper (arXiv 2212.04356) as onnxruntime-genai's builder writes it, and
`read_vision_model` for models that generate text and take images or audio clips in chats.

A speech model's ids of special tokens come from tokenizer.json. Tokens that a transcript never contains come from the
original model's generation_config.json, if the directory has that file; otherwise from a list in this module. Whether a
model takes images or audio in chats is read from genai_config.json.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from genai_server.errors import ModelDirectoryError
from genai_server.model_files.config_files import GENAI_CONFIG, read_object

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


# Takes audio, but no images.
_LFM2_AUDIO = "lfm2_audio"


class SpeechModel(Struct, frozen=True):
    """Description of a model that transcribes speech, read from its directory: its special tokens, its languages, and
    how many seconds of audio it reads at once. Fields that name a token have its id.
    """

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
    """Return whether the model in a directory transcribes speech. False if genai_config.json cannot be read."""
    try:
        return _has_kind(read_object(directory / GENAI_CONFIG))
    except ModelDirectoryError:
        return False


def read_speech_model(directory: Path) -> SpeechModel | None:
    """Return the description of the model in a directory if it transcribes speech; None if the model there does not.

    Raises ModelDirectoryError, which names the file, if a configuration is not valid.
    """
    config = read_object(directory / GENAI_CONFIG)
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
    language_ids = range(start + 1, min(tasks))
    languages = {name.strip("<|>"): id for name, id in added.items() if id in language_ids} if is_multilingual else {}
    vocabulary = tokenizer["model"]["vocab"]
    suppressed = generation.get("suppress_tokens")
    if suppressed is None:
        suppressed = _non_speech_tokens(vocabulary)
    limit = int(model.get("vocab_size") or _MAX_TOKENS)
    if invalid := [id for id in suppressed if not 0 <= int(id) < limit]:
        raise ModelDirectoryError(
            f"{directory / GENERATION} suppresses the token {invalid[0]}, which is not among the model's {limit}"
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
        sorted(special.union(map(int, suppressed)) - {end}),
    )


def _window_seconds(directory: Path) -> float:
    """Return the length in seconds to which onnxruntime-genai's audio processor, as configured in the model directory,
    pads or cuts every recording.
    """
    steps = read_object(directory / AUDIO_PROCESSOR).get("feature_extraction", {}).get("sequence", [])
    for step in steps:
        seconds = step.get("operation", {}).get("attrs", {}).get("chunk_size")
        if seconds is not None:
            return float(seconds)
    return _WINDOW_SECONDS


def _non_speech_tokens(vocabulary: Mapping[str, int]) -> list[int]:
    """Return the ids of the tokens for symbols that are not speech, such as brackets and musical notes (`_SYMBOLS`,
    `_NOTES`, `_STARTS`).

    Most symbols count both alone and after a space. `vocabulary` has the ids of the tokens of a byte-level BPE by their
    texts.
    """
    tokens = set()
    for symbol in _SYMBOLS:
        tokens |= {vocabulary[text] for text in _spelled(symbol) if text in vocabulary}
    for note in _NOTES:
        for text in _spelled(note):
            prefixes = (text[:length] for length in range(len(text), 1, -1) if text[:length] in vocabulary)
            tokens |= {vocabulary[first] for first in list(prefixes)[:1]}
    tokens |= {vocabulary[text] for text in map(_byte_level, _STARTS) if text in vocabulary}
    return sorted(tokens)


def _spelled(symbol: str) -> Iterable[str]:
    return _byte_level(symbol), _byte_level(" " + symbol)


def _byte_level(text: str) -> str:
    """Return a text as a byte-level BPE vocabulary writes it: one printable character for each byte of its UTF-8."""
    return "".join(BYTE_CHARACTERS[byte] for byte in text.encode())


def _characters() -> list[str]:
    """Return, for each of the 256 byte values, the character by which GPT-2's vocabulary writes it
    (`bytes_to_unicode`): the byte's character in Latin-1 if that is printable, otherwise a character from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + unprintable.index(byte)) for byte in range(256)]


BYTE_CHARACTERS = _characters()


def longest_audio(num_bytes: int, max_seconds: int) -> int:
    """Return the maximum number of seconds that an audio file of `num_bytes` bytes can last, but no more than
    `max_seconds`. Used to estimate the work before the file is decoded.
    """
    return min(max_seconds, num_bytes // MIN_BYTES_PER_SECOND + 1)


class Medium(StrEnum):
    """The kind of input that a generating model takes in chats besides text: images or audio clips."""

    IMAGE = "image"
    AUDIO = "sound"


@dataclass(frozen=True)
class _Family:
    """The texts that stand for an image in the prompts of one family of models, as onnxruntime-genai's image processor
    expects them.
    """

    marker: str
    placeholder: str
    # The token that stands for one image feature in an expanded prompt.
    feature: str


_QWEN = _Family("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>", "<|image_pad|>")
_FAMILIES = {
    "fara": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "gemma3": _Family("<start_of_image>", "<start_of_image>", "<image_soft_token>"),
    "gemma4": _Family("<|image|>", "<|image|>", "<|image|>"),
    "mistral3": _Family("[IMG]", "[IMG]", "[IMG]"),
    "lfm2_vl": _Family("<image>", "<image>", "<image>"),
    # The processor replaces <|image_1|> by this token; the tokenizer only knows this one.
    "phi4mm": _Family("<|endoftext10|>", "<|endoftext10|>", "<|endoftext10|>"),
}


@dataclass(frozen=True)
class VisionModel:
    """Description of a model that generates text and takes images or, with `Medium.AUDIO`, audio clips, read from its
    directory: the texts and the token that stand for an image or audio clip in a prompt.
    """

    directory: Path
    # model.type of genai_config.json.
    kind: str
    # The text that stands for one image in a prompt for onnxruntime-genai's processor, or for one audio clip in what a
    # chat template writes.
    marker: str
    # The special token in `marker`, which a chat template writes once for each image or audio clip.
    placeholder: str
    # The token whose embedding is replaced by a feature of the image.
    image_token_id: int
    medium: Medium = Medium.IMAGE


def read_vision_model(model_dir: Path) -> VisionModel | None:
    """Return how the generating model in a directory takes images or audio clips; None if the model takes only text, or
    if its type is not supported.

    Raises ModelDirectoryError, which names the file, if a configuration is not valid.
    """
    config = read_object(model_dir / GENAI_CONFIG)
    model = config.get("model")
    if not isinstance(model, dict):
        return None
    if model.get("type") == _LFM2_AUDIO and _has_graph(model.get("speech")) and _has_graph(model.get("embedding")):
        return _audio_model(model_dir, model)
    family = _FAMILIES.get(str(model.get("type")))
    if family is None or not _has_graph(model.get("vision")) or not _has_graph(model.get("embedding")):
        return None
    token = model.get("image_token_id")
    if not isinstance(token, int):
        token = _token_id(model_dir / _TOKENIZER, family.feature)
    if not 0 <= token < 2**31:
        raise ModelDirectoryError(f"{model_dir / GENAI_CONFIG} has a wrong value for model.image_token_id: {token}")
    return VisionModel(model_dir, str(model["type"]), family.marker, family.placeholder, token)


def _audio_model(model_dir: Path, model: dict[str, Any]) -> VisionModel:
    token = model.get("audio_token_id")
    for added in read_object(model_dir / _TOKENIZER).get("added_tokens") or ():
        if added.get("id") == token and added.get("special"):
            placeholder = str(added["content"])
            return VisionModel(model_dir, _LFM2_AUDIO, placeholder, placeholder, int(added["id"]), Medium.AUDIO)
    raise ModelDirectoryError(
        f"{model_dir / _TOKENIZER} has no special token with model.audio_token_id of genai_config.json: {token}"
    )


def medium_of(model_dir: Path) -> Medium | None:
    """Return which medium, images or audio, the model in a directory takes in chats besides text; None if it takes only
    text. Also None if a configuration is not valid, because the engine reports that.
    """
    try:
        model = read_vision_model(model_dir)
    except ModelDirectoryError:
        return None
    return None if model is None else model.medium


def any_takes_media(model_dirs: Iterable[str]) -> bool:
    """Return whether any of the model directories has a model that takes images or audio clips in chats."""
    return any(medium_of(Path(model_dir)) is not None for model_dir in model_dirs)


def _has_graph(section: Any) -> bool:
    return isinstance(section, dict) and bool(section.get("filename"))


def _token_id(path: Path, text: str) -> int:
    for token in read_object(path).get("added_tokens") or ():
        if token.get("content") == text:
            return int(token["id"])
    raise ModelDirectoryError(f"{path} has no token {text}, which stands for images, and genai_config.json no id of it")
