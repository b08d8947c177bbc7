"""Decodes untrusted recordings into files of PCM samples (`decode`), and is the main program of a worker process. It
must only run in such a process, which may crash or be killed without harm to the server.

The process's argument is a specification in JSON: the longest recording in seconds, and whether the process gives way
to others. Questions and answers are JSON objects. A question names the recording's file, the file to write and the
maximum seconds to write. The answer is the number of samples and their peak amplitude, or that the recording is longer,
or the reason why the recording is refused or the samples cannot be written. The process reads no environment variables
and holds no secrets.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import av
import numpy as np

from genai_server.model_files.speech_and_vision import MIN_BYTES_PER_SECOND, SAMPLE_RATE
from genai_server.workers.worker_loop import Answer, answer_questions

# Names of FFmpeg's demuxers. Others open further files or connections (playlists, SDP), or are rare.
_FORMATS = "mp3,flac,ogg,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,wav,w64,aac,mpeg"
_NAMES = "flac, mp3, mp4, mpeg, mpga, m4a, ogg, wav or webm"
# Names of FFmpeg's decoders. Without pictures and subtitles, which the files may have, too.
_DECODERS = (
    "aac,ac3,adpcm_ima_qt,adpcm_ima_wav,adpcm_ms,alac,amrnb,amrwb,eac3,flac,gsm_ms,mp1float,mp2,mp2float,mp3,mp3float,"
    "opus,pcm_alaw,pcm_f32be,pcm_f32le,pcm_f64be,pcm_f64le,pcm_mulaw,pcm_s16be,pcm_s16le,pcm_s24be,pcm_s24le,"
    "pcm_s32be,pcm_s32le,pcm_s8,pcm_u8,speex,vorbis"
)
# Hz. The memory for resampling grows with the ratio of two rates.
_MIN_RATE, _MAX_RATE = 1000, 768_000
# FFmpeg mixes as many.
_MAX_CHANNELS = 64
_BUFFER = 256 * 1024


class UnusableRecording(Exception):
    """Error: a recording cannot be used, for example because it is damaged or too long.

    The message says why, as the rest of a sentence that begins with "the recording".
    """


class LongerRecording(Exception):
    """Error: a recording is longer than may be decoded in this attempt, and may be decoded again with a higher
    limit.
    """


def decode(
    source: BinaryIO, target: BinaryIO, num_bytes: int, max_seconds: int, seconds: int | None = None
) -> tuple[int, int]:
    """Decode the recording `source`, of `num_bytes` bytes, and write it to `target` as mono PCM of 16 bits at 16 kHz.

    Returns the number of samples and their peak amplitude (at most 32768). Both files are processed in parts, never
    held in memory as a whole. Damaged parts are left out. Raises UnusableRecording if there is no audio that can be
    decoded, or more than `max_seconds` of it; LongerRecording if there is more than `seconds` of it (None for no such
    limit); and OSError if the target cannot be written.
    """
    if not num_bytes:
        raise UnusableRecording("is an empty file")
    writer = _Writer(target, max_seconds, seconds or max_seconds)
    with _open(source) as container:
        stream = _audio_stream(container)
        claimed = (container.duration or 0) / av.time_base
        if claimed > max_seconds and num_bytes / claimed >= MIN_BYTES_PER_SECOND:
            writer.refuse(claimed)
        resampler: av.AudioResampler | None = None
        form = None
        for frame in _frames(container, stream):
            writer.check(frame)
            if form != (form := (frame.format.name, frame.layout.name, frame.sample_rate)):
                # Parts of a chained stream may differ.
                writer.write(_resample(resampler, None))
                resampler = av.AudioResampler("s16", "mono", SAMPLE_RATE)
            writer.write(_resample(resampler, frame))
        writer.write(_resample(resampler, None))
    if not writer.num_samples:
        raise UnusableRecording("has no audio, or none that can be decoded")
    return writer.num_samples, writer.peak


def _open(source: BinaryIO) -> Any:
    av.logging.set_level(None)
    try:
        return av.open(
            source,
            "r",
            container_options={
                "format_whitelist": _FORMATS,
                "codec_whitelist": _DECODERS,
                "protocol_whitelist": "none",
            },
            metadata_errors="ignore",
            buffer_size=_BUFFER,
            io_open=_open_nothing,
        )
    except MemoryError:
        raise
    except Exception:  # a demuxer may raise anything
        raise UnusableRecording(f"is not a {_NAMES} file") from None


def _open_nothing(*_: Any) -> NoReturn:
    """Raise PermissionError. FFmpeg calls this function to open further files or connections, to which a recording may
    refer.
    """
    raise PermissionError


def _audio_stream(container: Any) -> Any:
    """Return the audio stream of a recording that FFmpeg considers the best.

    `container` is the opened file. Raises UnusableRecording if it has no audio, or audio in a codec that this server
    does not decode.
    """
    stream = container.streams.best("audio")
    if stream is None:
        raise UnusableRecording("has no audio stream")
    context = stream.codec_context
    if context is None or context.codec.name not in _DECODERS.split(","):
        name = "of an unknown codec" if context is None else f"of the codec {context.codec.name}"
        raise UnusableRecording(f"has audio {name}, which this server does not decode")
    context.thread_count = 1
    return stream


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """Yield all decoded frames of an audio stream. Damaged packets are skipped."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except (av.FFmpegError, OSError, ValueError) as error:
            # An OSError, such as of a jump to a place before the file's beginning, comes from the source.
            _raise_for_memory(error)
            return
        try:
            frames = packet.decode()
        except (av.FFmpegError, ValueError) as error:
            _raise_for_memory(error)
            continue
        yield from frames


def _resample(resampler: Any, frame: Any) -> list[Any]:
    if resampler is None:
        return []
    try:
        frames: list[Any] = resampler.resample(frame)
    except (av.FFmpegError, ValueError) as error:
        _raise_for_memory(error)
        name = "its channels" if frame is None else f"its {frame.layout.nb_channels} channels ({frame.layout.name})"
        raise UnusableRecording(f"has audio that cannot be mixed from {name}") from None
    return frames


def _raise_for_memory(error: Exception) -> None:
    if isinstance(error, MemoryError):
        raise error


class _Writer:
    """Writes the samples of one recording to a file and enforces the limits of length, sample rate and channels.

    `max_seconds` is the maximum length of any recording, and `seconds` the maximum length of this attempt.
    `num_samples` and `peak` are the number and the peak amplitude of the samples so far.
    """

    def __init__(self, target: BinaryIO, max_seconds: int, seconds: int) -> None:
        self.num_samples = 0
        # The peak amplitude.
        self.peak = 0
        self._target = target
        self._max_seconds = max_seconds
        self._seconds = seconds

    def check(self, frame: Any) -> None:
        """Check a decoded frame of audio before it is resampled. Raises UnusableRecording if it exceeds a limit."""
        if not _MIN_RATE <= frame.sample_rate <= _MAX_RATE:
            raise UnusableRecording(
                f"must have a sample rate between {_MIN_RATE} and {_MAX_RATE} Hz, given {frame.sample_rate}"
            )
        if frame.layout.nb_channels > _MAX_CHANNELS:
            raise UnusableRecording(f"may have at most {_MAX_CHANNELS} channels, given {frame.layout.nb_channels}")
        if self.num_samples / SAMPLE_RATE + frame.samples / frame.sample_rate > self._max_seconds + 1:
            self.refuse(None)

    def write(self, frames: list[Any]) -> None:
        """Write resampled frames of audio to the file.

        Raises UnusableRecording above the maximum length of a recording, and LongerRecording above that of this
        attempt.
        """
        for frame in frames:
            samples = np.frombuffer(frame.planes[0], np.int16, frame.samples)
            self.peak = max(self.peak, int(samples.max(initial=0)), -int(samples.min(initial=0)))
            self.num_samples += frame.samples
            if self.num_samples > self._max_seconds * SAMPLE_RATE:
                self.refuse(None)
            if self.num_samples > self._seconds * SAMPLE_RATE:
                raise LongerRecording
            self._target.write(samples.data)

    def refuse(self, seconds: float | None) -> NoReturn:
        """Raise UnusableRecording because the recording is too long.

        `seconds` is its length as the file declares it; None if the length is not known.
        """
        length = "more" if seconds is None else f"{seconds:.0f} s"
        raise UnusableRecording(f"may be at most {self._max_seconds} s long (GENAI_MAX_AUDIO_SECONDS), given {length}")


# Maximum bytes in addition to the process's memory at its start: for anything, and for each second that a recording may
# have. An MP4 file has an index with an entry for each frame.
_MEMORY = 512 * 1024 * 1024
_MEMORY_PER_SECOND = 8 * 1024


def main() -> None:
    """Main program of the worker process: decode recordings, as the parent process asks, until the parent exits."""
    spec = json.loads(sys.argv[1])
    max_seconds = spec["max_seconds"]

    def prepare() -> Answer:
        return lambda question, data: _answer(question, max_seconds)

    answer_questions(prepare, _MEMORY + _MEMORY_PER_SECOND * max_seconds, gives_way=spec["gives_way"])


def _answer(question: dict[str, Any], max_seconds: int) -> dict[str, Any]:
    try:
        with Path(question["path"]).open("rb") as source, Path(question["target"]).open("wb") as target:
            size, seconds = os.fstat(source.fileno()).st_size, question["seconds"]
            num_samples, peak = decode(source, target, size, max_seconds, seconds)
    except LongerRecording:
        return {"is_longer": True}
    except UnusableRecording as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "needs more memory than a recording may take"}
    except OSError as error:
        return {"unavailable": error.strerror or type(error).__name__}
    return {"num_samples": num_samples, "peak": peak}


if __name__ == "__main__":
    main()
