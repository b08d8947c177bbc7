"""Decoding recordings: formats, limits, damaged files, and files that name other files."""

import io
import struct
from pathlib import Path

import av
import numpy as np
import pytest

from genai_server.media.audio.decoding import UnusableRecording, decode
from tests.media.audio.sounds import RATE, Samples, encoded, tone


def _decoded(data: bytes, max_seconds: int = 60) -> Samples:
    file = io.BytesIO()
    num_samples, peak = decode(io.BytesIO(data), file, len(data), max_seconds)
    samples = np.frombuffer(file.getvalue(), np.int16)
    assert (num_samples, peak) == (len(samples), np.abs(samples.astype(int)).max(initial=0))
    return samples


def _refusal(data: bytes, max_seconds: int = 60) -> str:
    with pytest.raises(UnusableRecording) as refused:
        decode(io.BytesIO(data), io.BytesIO(), len(data), max_seconds)
    return str(refused.value)


def _wav(rate: int = RATE, channels: int = 1, num_bytes: int = 2000, claimed: int | None = None) -> bytes:
    form = struct.pack("<IHHIIHH", 16, 1, channels, rate, 2 * rate * channels & 0xFFFFFFFF, 2 * channels, 16)
    size = struct.pack("<I", num_bytes if claimed is None else claimed)
    return b"RIFF\xff\xff\xff\x7fWAVEfmt " + form + b"data" + size + bytes(num_bytes)


@pytest.mark.parametrize(
    ("format", "codec", "rate", "layout"),
    [
        ("flac", "flac", 44_100, "stereo"),
        ("mp3", "libmp3lame", 44_100, "stereo"),
        ("mp4", "aac", 44_100, "stereo"),
        ("ipod", "aac", 44_100, "mono"),
        ("ipod", "alac", 44_100, "mono"),
        ("mpeg", "mp2", 44_100, "stereo"),
        ("mp2", "mp2", 44_100, "stereo"),
        ("ogg", "vorbis", 44_100, "stereo"),
        ("ogg", "libopus", 48_000, "mono"),
        ("wav", "pcm_s16le", 8000, "mono"),
        ("wav", "pcm_f32le", 96_000, "5.1"),
        ("wav", "pcm_mulaw", 8000, "mono"),
        ("webm", "libopus", 48_000, "stereo"),
        ("webm", "vorbis", 44_100, "stereo"),
    ],
)
def test_recording_becomes_16_khz_mono(format: str, codec: str, rate: int, layout: str) -> None:
    samples = _decoded(encoded(tone(2, rate), format, codec, rate, layout))
    assert 2 * RATE <= len(samples) < 2.1 * RATE
    spectrum = np.abs(np.fft.rfft(samples[RATE // 2 : RATE // 2 + RATE]))
    assert np.argmax(spectrum) == 440
    assert 6000 < np.abs(samples[RATE // 2 : RATE].astype(int)).max() < 12_000


def test_samples_of_the_same_form_are_unchanged() -> None:
    assert np.array_equal(_decoded(encoded(tone(1))), tone(1))


def test_parts_of_a_stream_may_differ() -> None:
    parts = ((44_100, "stereo"), (22_050, "mono"), (44_100, "mono"))
    data = b"".join(encoded(tone(1, rate), "mp3", "libmp3lame", rate, layout) for rate, layout in parts)
    assert 2.9 * RATE < len(_decoded(data)) < 3.3 * RATE
    chained = 2 * encoded(tone(1.5, 48_000), "ogg", "libopus", 48_000)
    assert 2.9 * RATE < len(_decoded(chained)) < 3.1 * RATE


def test_gap_between_timestamps_adds_no_silence() -> None:
    file = io.BytesIO()
    whole = io.BytesIO(encoded(tone(4, 48_000), "webm", "libopus", 48_000))
    with av.open(whole, "r") as source, av.open(file, "w", format="webm") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.pts is not None:
                packet.stream = stream
                packet.pts = packet.dts = packet.pts if packet.pts < 2000 else packet.pts + 3_600_000
                target.mux(packet)
    assert 3.9 * RATE < len(_decoded(file.getvalue(), 5000)) < 4.1 * RATE


def test_cover_art_is_not_decoded() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        sound, picture = container.add_stream("aac", rate=RATE), container.add_stream("mjpeg", rate=1)
        picture.width, picture.height, picture.pix_fmt = 64, 64, "yuvj420p"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = RATE
        sound.layout = "mono"
        container.mux(picture.encode(av.VideoFrame(64, 64, "yuvj420p")))
        for _ in range(20):
            container.mux(sound.encode(frame))
        container.mux([*sound.encode(None), *picture.encode(None)])
    assert len(_decoded(file.getvalue())) >= 20 * 1024


def _film() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=1)
        stream.width, stream.height = 64, 64
        container.mux([*stream.encode(av.VideoFrame(64, 64, "yuv420p")), *stream.encode(None)])
    return file.getvalue()


_NO_FORMAT = "is not a flac, mp3, mp4, mpeg, mpga, m4a, ogg, wav or webm file"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is an empty file"),
        (_film(), "has no audio stream"),
        (_wav(num_bytes=0), "has no audio, or none that can be decoded"),
        (encoded(tone(1), "matroska", "tta"), "has audio of the codec tta, which this server does not decode"),
        (b"This is a text and no sound. " * 100, _NO_FORMAT),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), _NO_FORMAT),
        (encoded(tone(1), "aiff", "pcm_s16be"), _NO_FORMAT),
        (encoded(tone(1), "caf", "pcm_s16le"), _NO_FORMAT),
        (encoded(tone(1), "au", "pcm_s16be"), _NO_FORMAT),
    ],
    ids=["empty", "film", "no samples", "tta", "text", "png", "aiff", "caf", "au"],
)
def test_other_files_are_refused(data: bytes, words: str) -> None:
    assert _refusal(data) == words


def _lists(sound: Path) -> dict[str, str]:
    """Files that name another file, or an address to listen at."""
    dash = (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
        'mediaPresentationDuration="PT3S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period>'
        '<AdaptationSet mimeType="audio/mp4"><Representation id="1" bandwidth="1000" mimeType="audio/mp4">'
        f"<BaseURL>file://{sound}</BaseURL></Representation></AdaptationSet></Period></MPD>"
    )
    return {
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\nfile://{sound}\n#EXT-X-ENDLIST\n",
        "concat": f"ffconcat version 1.0\nfile '{sound}'\n",
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
        "dash": dash,
        "asx": f"<asx><entry><ref href='file://{sound}'/></entry></asx>",
        "pls": f"[playlist]\nFile1={sound}\n",
        "rtsp": "rtsp://127.0.0.1/",
    }


@pytest.mark.parametrize("kind", list(_lists(Path())))
def test_file_that_names_another_is_refused(own_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    sound = own_folder / "secret.wav"
    sound.write_bytes(encoded(tone(1)))
    monkeypatch.chdir(own_folder)
    for path in (sound, Path(sound.name)):
        assert "is not a flac" in _refusal(_lists(path)[kind].encode())


def test_longer_recording_is_refused_by_its_header() -> None:
    data = encoded(tone(12))
    assert _refusal(data, 10) == "may be at most 10 s long (GENAI_MAX_AUDIO_SECONDS), given 12 s"
    assert len(_decoded(data, 12)) == 12 * RATE


def test_longer_recording_is_refused_while_it_is_decoded() -> None:
    file = io.BytesIO()
    data = 4 * encoded(tone(4, 48_000), "ogg", "libopus", 48_000)  # its claim is that of a single one
    with pytest.raises(UnusableRecording, match=r"at most 10 s long \(GENAI_MAX_AUDIO_SECONDS\), given more"):
        decode(io.BytesIO(data), file, len(data), 10)
    assert len(file.getvalue()) <= 2 * 10 * RATE


def test_wrong_claim_of_a_length_is_not_believed() -> None:
    data = bytearray(encoded(tone(1), "flac", "flac"))
    data[22:26] = b"\xff\xff\xff\xff"  # the number of samples
    assert len(_decoded(bytes(data), 10)) == RATE
    assert len(_decoded(_wav(claimed=0xFFFFFFFF), 10)) == 1000


@pytest.mark.parametrize(
    ("rate", "channels", "words"),
    [
        (999, 1, "must have a sample rate between 1000 and 768000 Hz, given 999"),
        (768_001, 1, "must have a sample rate between 1000 and 768000 Hz, given 768001"),
        (RATE, 65, "may have at most 64 channels, given 65"),
        (RATE, 9, "has audio that cannot be mixed from its 9 channels"),
    ],
)
def test_absurd_rates_and_channels_are_refused(rate: int, channels: int, words: str) -> None:
    assert _refusal(_wav(rate, channels, 20_000 * channels)).startswith(words)


@pytest.mark.parametrize("rate", [1000, 768_000])
def test_rates_within_the_limits_are_resampled(rate: int) -> None:
    assert len(_decoded(_wav(rate, num_bytes=2 * rate))) == RATE


@pytest.mark.parametrize(
    ("format", "codec"), [("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "libopus"), ("adts", "aac")]
)
def test_damaged_parts_are_left_out(format: str, codec: str) -> None:
    data = bytearray(encoded(tone(4, 48_000), format, codec, 48_000))
    middle = len(data) // 2
    data[middle : middle + 300] = bytes(300)
    assert 3 * RATE <= len(_decoded(bytes(data))) <= 4.1 * RATE
    assert RATE < len(_decoded(bytes(data[:middle]))) < 3 * RATE


def test_tags_that_are_no_text_are_ignored() -> None:
    data = encoded(tone(1), "mp3", "libmp3lame", 44_100)
    tag = b"TIT2" + struct.pack(">I", 5) + b"\0\0\x03\xff\xfe\xfd\xfc"
    assert len(_decoded(b"ID3\x03\0\0" + bytes((0, 0, 0, len(tag))) + tag + data)) > 0.3 * RATE


def test_target_that_cannot_be_written_is_an_error() -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    data = encoded(tone(1))
    with pytest.raises(OSError, match="No space"):
        decode(io.BytesIO(data), Full(), len(data), 60)


def test_a_failing_source_is_damage_and_not_a_full_disk() -> None:
    class Failing(io.BytesIO):
        num_reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.num_reads += 1
            if self.num_reads > 2:
                raise OSError(22, "Invalid argument")  # as for a jump to before the file's beginning
            return super().read(size)

    data, target = encoded(tone(60, 48_000), "wav", "pcm_s16le", 48_000), io.BytesIO()
    num_samples, _ = decode(Failing(data), target, len(data), 60)
    assert 0 < num_samples < 60 * RATE
