"""Transcribes one window of a recording, the part that a speech model reads at once. `WindowTranscriber` runs the
model, and repeats the decoding with higher temperatures until the text is good enough; `split` divides the tokens into
segments, and `words_of` groups them into words.

The thresholds are those of Whisper's authors (arXiv 2212.04356, section 4.5, and their reference implementation). A
text is split into segments at the timestamps among its tokens, and its tokens are grouped into words with times, as in
openai/whisper (timing.py, tokenizer.py).
"""

import math
import re
import string
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

from msgspec import structs

from genai_server.generation.engine_requests import EngineRequests
from genai_server.media.audio.recordings import Window
from genai_server.messages.generation_request import (
    Alignment,
    AudioInput,
    GenerationRequest,
    Sampling,
    TokenLogprob,
    TranscriptRules,
)
from genai_server.model_files.speech_and_vision import TIME_PRECISION, SpeechModel
from genai_server.text.codec import TextCodec

# Codes of languages whose words are not separated by spaces. Each of their characters counts as a word.
_UNSPACED = {"ja", "lo", "my", "th", "yue", "zh"}
# Punctuation, which is not part of a word and takes no time of its own.
_MARKS = re.escape(string.punctuation + "“”‘’«»„¿¡…。，、！？：；（）「」『』")
_AROUND = re.compile(rf"\A[\s{_MARKS}]+|[\s{_MARKS}]+\Z")

# Seconds. The times of segments are the model's own tokens, and less exact than those of words.
_SLACK = 0.5


class Word(NamedTuple):
    """A word of a transcript, without the punctuation around it, and when it is spoken, in seconds."""

    text: str
    start: float
    end: float


class _Piece(NamedTuple):
    """The smallest group of consecutive tokens whose bytes are complete characters. Words are put together from pieces.
    `first` is the position of its first token among the tokens, and `last` the position after its last token.
    """

    text: str
    first: int
    last: int

    @property
    def is_mark(self) -> bool:
        return not _AROUND.sub("", self.text)


def words_of(
    tokens: Sequence[int], times: Sequence[float], token_bytes: Callable[[int], bytes], language: str
) -> list[Word]:
    """Group the tokens of a text into words with times. Returns the words without the punctuation around them.

    `times` has the time in seconds at which each token begins and, as its last value, the time at which the last token
    ends. `token_bytes` returns the bytes of a token. If `language`, a code such as "ja", writes no spaces between
    words, each character counts as a word.
    """
    grouped: list[list[_Piece]] = []
    for piece in _pieces([token_bytes(token) for token in tokens]):
        starts_word = not piece.is_mark if language in _UNSPACED else piece.text[:1].isspace()
        if starts_word or not grouped:
            grouped.append([])
        grouped[-1].append(piece)
    return [word for pieces in grouped if (word := _word(pieces, times)) is not None]


def bounded(words: Sequence[Word], start: float, end: float) -> list[Word]:
    """Correct the times of the words of a segment, and return the words: no time is more than half a second outside of
    the segment's `start` and `end`, and silence before the first word and after the last word is not counted as part of
    the words. All times are in seconds.
    """
    if not words:
        return []
    low, high = start - _SLACK, end + _SLACK
    moved = [Word(text, min(max(a, low), high), min(max(b, low), high)) for text, a, b in words]
    first = moved[0]
    moved[0] = first._replace(start=max(first.start, min(start, first.end)))
    last = moved[-1]
    moved[-1] = last._replace(end=min(last.end, max(end, last.start)))
    return moved


def _word(pieces: Sequence[_Piece], times: Sequence[float]) -> Word | None:
    """Join pieces, groups of tokens that are complete characters, to one word without punctuation at its ends. Returns
    None if there is only punctuation. `times` has the beginning of each token and the end of the last one, in seconds.
    """
    text = _AROUND.sub("", "".join(piece.text for piece in pieces))
    spoken = [piece for piece in pieces if not piece.is_mark]
    return Word(text, times[spoken[0].first], times[spoken[-1].last]) if text and spoken else None


def _pieces(data: Sequence[bytes]) -> Collection[_Piece]:
    pieces, first, text = [], 0, b""
    for last, part in enumerate(data, 1):
        text += part
        is_complete = last == len(data)
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            decoded = text.decode(errors="replace")
        else:
            is_complete = True
        if is_complete:
            pieces.append(_Piece(decoded, first, last))
            first, text = last, b""
    return pieces


# A window of which less than this number of seconds would be complete is taken as a whole. Each window takes a pass of
# the encoder, and timestamps may be only 0.02 s apart.
_MIN_ADVANCE = 1.0
# Seconds. A segment that ends so close to the end of a window that cuts speech may be cut, too.
_CUT_MARGIN = 0.3


@dataclass(frozen=True)
class Segment:
    """A segment of a transcript: a stretch of text, such as a sentence, with its times, tokens and quality. Times are
    in seconds from the beginning of the recording.
    """

    start: float
    end: float
    text: str
    # Includes the timestamps around the text.
    tokens: list[int]
    # Where its window begins.
    window_start: float
    temperature: float
    # About the whole window: mean log probability of the tokens, compression ratio of the text, and probability that
    # nobody speaks.
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    # Log probabilities of the text's tokens.
    logprobs: Sequence[TokenLogprob] = ()
    # If they are wanted.
    words: Sequence[Word] = ()


class Span(NamedTuple):
    """The position of a segment among the tokens of its window (the part of a recording that the model reads at once),
    and the segment's times in seconds from the beginning of the window. `split` returns spans.

    The model may have written times that are later than the end of the window.
    """

    first: int
    last: int
    start: float
    end: float


def split(
    tokens: Sequence[int], model: SpeechModel, duration: float, *, is_cut: bool = False
) -> tuple[list[Span], float]:
    """Divide what the model wrote for a window of a recording into segments, at the timestamps among its tokens.
    Returns the segments, and how many seconds of the window they cover: the next window begins there.

    `duration` is the length of the window in seconds. Text after the last complete segment is left out, because the
    next window contains it again, unless it reaches the end of the window. If `is_cut`, the window ends within speech:
    text that reaches its end is then not complete, and a word there may be cut.
    """
    first = model.first_timestamp
    is_time = [token >= first for token in tokens]

    def time(index: int, otherwise: float) -> float:
        return (tokens[index] - first) * TIME_PRECISION if is_time[index] else otherwise

    # A segment's end is followed by the next one's beginning.
    ends = [index for index in range(len(tokens) - 1) if is_time[index] and is_time[index + 1]]
    has_end = is_time[-2:] == [False, True]
    if is_cut and has_end and (last := time(len(tokens) - 1, duration)) < duration - _CUT_MARGIN:
        ends, advance = [*ends, len(tokens) - 1], last
    elif not ends or (has_end and not is_cut):
        # No speech follows the last time, or the text has no other one.
        ends, advance = [*ends, len(tokens) - 1], duration
    else:
        advance = time(ends[-1], duration)
    if advance < min(_MIN_ADVANCE, duration):
        ends, advance = [len(tokens) - 1], duration
    spans, first_token = [], 0
    for index in ends if tokens else ():
        end = duration if index == first_token else time(index, duration)
        spans.append(Span(first_token, index + 1, time(first_token, 0.0), end))
        first_token = index + 1
    return spans, min(advance, duration)


def compression_ratio(text: str) -> float:
    """Return the length of a text in bytes divided by its length after compression with zlib. The ratio is high for a
    text that repeats itself, which is a sign of a failed transcription.
    """
    data = text.encode()
    return len(data) / len(zlib.compress(data))


_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_MAX_COMPRESSION = 2.4
_MIN_LOGPROB = -1.0
_MAX_NO_SPEECH = 0.6
# Seconds. The first timestamp of a window is at most this.
_MAX_FIRST_TIMESTAMP = 1.0
# At least this much is added to the logits of a token that is selected.
_SELECTED_TOKEN_BONUS = 100.0
_ANY = Sampling()


@dataclass(frozen=True)
class TranscriptTask:
    """How all windows of a recording, the parts that the model reads at once, are to be transcribed: the spoken
    language, whether to translate to English, and the sampling temperature to try first.
    """

    # Code of the spoken language; "" for a model that only knows English.
    language: str
    translates: bool
    # The first one that is tried.
    temperature: float
    # Whether the probability that a window has no speech is reported, rather than computed where it matters.
    shows_no_speech: bool


@dataclass(frozen=True)
class WindowTranscript:
    """What the model has written for one window of a recording, with the numbers by which its quality is judged:
    temperature, mean log probability, compression ratio, and the probability that nobody speaks.
    """

    # Timestamps and text, with a log probability for each.
    tokens: list[int]
    logprobs: list[TokenLogprob]
    text: str
    temperature: float
    # The mean of the log probabilities.
    avg_logprob: float
    compression_ratio: float
    # 0 if it was not computed.
    no_speech_prob: float

    @property
    def is_silent(self) -> bool:
        """Whether nobody speaks in the window of the recording, by Whisper's thresholds for the probability of silence
        and the log probability of the text.
        """
        return self.no_speech_prob > _MAX_NO_SPEECH and self.avg_logprob < _MIN_LOGPROB

    @property
    def is_good(self) -> bool:
        """Whether the text can be used, by Whisper's thresholds: it does not repeat itself (compression ratio), and its
        mean log probability is not too low. Otherwise the window is transcribed again with a higher temperature.
        """
        return self.compression_ratio <= _MAX_COMPRESSION and self.avg_logprob >= _MIN_LOGPROB


class WindowTranscriber:
    """Runs one speech model on windows of a recording (the parts that the model reads at once): detects the language,
    transcribes, and finds the times of tokens. Each transcription of a recording has its own object.

    `requests` runs the engine requests of the HTTP request. `base` is an engine request with the fields that are the
    same for all windows, such as the salt of the prefix cache and `max_length`, the maximum number of tokens of prompt
    and transcript together.
    """

    def __init__(self, model: SpeechModel, codec: TextCodec, requests: EngineRequests, base: GenerationRequest) -> None:
        self._model = model
        self.token_bytes = codec.tokenizer.token_bytes
        self._tokenizer = codec.tokenizer
        self._special = {model.end_of_text, *codec.tokenizer.special_tokens.values()}
        self._requests = requests
        self._base = base
        # Half of the context is for the text before, and half for the transcript.
        self._max_tokens = base.max_length // 2
        self._rules = TranscriptRules(
            suppressed=model.suppressed,
            end_of_text=model.end_of_text,
            first_timestamp=model.first_timestamp,
            max_first=round(_MAX_FIRST_TIMESTAMP / TIME_PRECISION),
        )

    async def detect_language(self, window: Window, candidates: Collection[str] = ()) -> str:
        """Return the code of the language that is most likely spoken in a window of the recording, out of the codes
        `candidates` or, if there are none, out of all languages of the model.
        """
        languages = {code: id for code, id in self._model.languages.items() if not candidates or code in candidates}
        scores = await self._scores(window, [], list(languages.values()))
        return max(languages, key=lambda code: scores[languages[code]])

    async def transcribe(self, window: Window, previous: Sequence[int], task: TranscriptTask) -> WindowTranscript:
        """Transcribe a window of the recording, at higher and higher temperatures until the text is good enough or the
        window is found to be silent. Returns the last attempt.

        `previous` are the tokens of the text before the window, which the model reads as context. Raises the errors
        with which engines refuse or fail a request.
        """
        before = self._before(previous)
        no_speech: float | None = None
        if task.shows_no_speech:
            no_speech = await self._no_speech(window, before)
        fallbacks = [temperature for temperature in _TEMPERATURES if temperature > task.temperature]
        for temperature in (task.temperature, *fallbacks):
            transcript = await self._attempt(window, before, task, temperature, no_speech or 0.0)
            if transcript.is_good:
                break
            if transcript.avg_logprob < _MIN_LOGPROB and no_speech is None:
                no_speech = await self._no_speech(window, before)
                transcript = replace(transcript, no_speech_prob=no_speech)
            if transcript.is_silent:
                break
        return transcript

    async def token_times(self, window: Window, tokens: Sequence[int], task: TranscriptTask) -> list[float]:
        """Find when the tokens of a transcribed window are spoken. Returns the time at which each of `tokens` begins
        and, as the last value, the time at which the last token ends, in seconds from the beginning of the window.
        """
        model = self._model
        prompt = [model.start_of_transcript, *self._task_tokens(task)]
        before = [*prompt, model.no_timestamps]
        alignment = Alignment([*before, *tokens, model.end_of_text], len(before), window.end - window.start)
        request = structs.replace(self._request(window, prompt, max_tokens=1, sampling=_ANY), alignment=alignment)
        return (await self._requests.run(request)).token_times

    def _before(self, previous: Sequence[int]) -> list[int]:
        """Return the tokens with which a prompt begins: the text before the window (`previous`), of which only the last
        tokens are used if it is too long, and the token that starts a transcript.
        """
        model = self._model
        last = previous[-(self._max_tokens - 1) :] if previous else []
        return [*([model.start_of_previous, *last] if last else []), model.start_of_transcript]

    async def _no_speech(self, window: Window, before: list[int]) -> float:
        token = self._model.no_speech
        return math.exp((await self._scores(window, before, [token]))[token])

    async def _scores(self, window: Window, before: list[int], tokens: list[int]) -> dict[int, float]:
        """Let the model read a window of the recording and the prompt `before`, and return the log probability of each
        of `tokens` as the next token. If `before` is empty, the prompt is the token that starts a transcript.
        """
        prompt = before or [self._model.start_of_transcript]
        # The token that is generated does not matter, but the end would bring no log probabilities.
        chosen = Sampling(logit_bias={self._model.no_speech: _SELECTED_TOKEN_BONUS})
        answer = await self._requests.run(
            self._request(window, prompt, max_tokens=1, sampling=chosen, scored_tokens=tokens)
        )
        logprobs = dict(answer.logprobs[0].top) if answer.logprobs else {}
        return {token: logprobs.get(token, -math.inf) for token in tokens}

    async def _attempt(
        self, window: Window, before: list[int], task: TranscriptTask, temperature: float, no_speech: float
    ) -> WindowTranscript:
        prompt = [*before, *self._task_tokens(task)]
        answer = await self._requests.run(
            self._request(
                window,
                prompt,
                max_tokens=min(self._max_tokens, self._base.max_length - len(prompt)),
                sampling=Sampling(temperature=temperature, seed=_seed(window, prompt, temperature)),
                transcript=self._rules,
            )
        )
        text = self.text(answer.tokens).strip()
        return WindowTranscript(
            answer.tokens,
            answer.logprobs,
            text,
            temperature,
            # The end of the text counts as a token.
            sum(logprob.logprob for logprob in answer.logprobs) / (len(answer.logprobs) + 1),
            compression_ratio(text),
            no_speech,
        )

    def _task_tokens(self, task: TranscriptTask) -> list[int]:
        """Return the tokens in a prompt that name the language and say whether to translate; none for a model that only
        knows English.
        """
        model = self._model
        if not task.language:
            return []
        return [model.languages[task.language], model.translate if task.translates else model.transcribe]

    def text(self, tokens: Sequence[int]) -> str:
        """Decode tokens to text, leaving out timestamps and other special tokens."""
        return self._tokenizer.decode([token for token in tokens if self.is_text(token)]) if tokens else ""

    def is_text(self, token: int) -> bool:
        """Return whether a token is part of the text, that is, neither a timestamp nor another special token."""
        return token < self._model.first_timestamp and token not in self._special

    def _request(
        self,
        window: Window,
        prompt: list[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        transcript: TranscriptRules | None = None,
        scored_tokens: Sequence[int] = (),
    ) -> GenerationRequest:
        salt = self._base.cache_salt
        digest = blake2b(f"{salt}\n{window.digest}".encode(), person=b"sound").hexdigest()
        return structs.replace(
            self._base,
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            cache_salt=digest,
            top_logprobs=0,
            sound=AudioInput(digest, str(window.path)),
            transcript=transcript,
            scored_tokens=list(scored_tokens),
        )


def _seed(window: Window, prompt: Sequence[int], temperature: float) -> int:
    """Return the sampling seed for an attempt to transcribe a window of a recording. The seed depends only on the
    window, the prompt and the temperature, so that the same recording always gets the same text.
    """
    digest = blake2b(f"{window.digest} {temperature} {list(prompt)}".encode(), digest_size=4).digest()
    return int.from_bytes(digest)
