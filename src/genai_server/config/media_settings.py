"""The settings about images and audio in requests (`MediaSettings`): from which hosts they may be fetched, and limits
of their number, size and time.
"""

import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from genai_server.config.setting_form import AUTO, Positive, SettingsForm, listed
from genai_server.errors import quoted

_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")

# Bytes of a decoded second: 16 bits at 16 kHz.
BYTES_PER_SECOND = 32_000
# How many of the longest recordings have space by default.
_LONGEST_RECORDINGS = 8
# Bytes of a prepared image for each of its tokens: 24,576 for Qwen's models, which take most.
_BYTES_PER_MEDIA_TOKEN = 28_000
# One request may have this part of the space for what is prepared.
_REQUESTS = 4


def checked_hosts(value: str) -> str:
    """Check `value`, a comma-separated list of hosts with optional ports, and return it unchanged. Raises ValueError
    for an entry that is not a host.
    """
    for host in filter(None, listed(value)):
        if not _HOST.fullmatch(host):
            raise ValueError(f"{quoted(host)} is not a host, such as images.example or cdn.example:8443")
    return value


def host_set(value: str) -> frozenset[str]:
    """Return the hosts of the comma-separated list `value` as a set, in lower case and with their ports where given."""
    return frozenset(host.lower() for host in listed(value) if host)


class MediaSettings(SettingsForm):
    """The settings about images and audio in requests, as a base class of `Settings`, the class with all settings of
    the server. Times are in seconds, sizes in bytes.
    """

    image_hosts: str = ""
    """Comma-separated hosts with public addresses from which the server may fetch images, such as
    `images.example,cdn.example:8443`. With an empty value it fetches none, and images must be sent as data URLs.
    """

    max_media: Positive = 16
    """Maximum number of images or audio parts in a request."""

    max_media_bytes: Positive = 20 * 1024 * 1024
    """Maximum size of an image or audio file, in bytes."""

    max_image_pixels: Positive = Field(50_000_000, le=500_000_000)
    """Maximum number of pixels of an image, width times height. A process that reads images may take 1 GiB plus 40
    bytes for each pixel.
    """

    max_request_pixels: Positive = 400_000_000
    """Maximum number of pixels of all images of a request together."""

    max_waiting_pixels: Positive = 2_000_000_000
    """Maximum number of pixels of images that wait to be prepared, for each API key, or for all clients without a key
    together; requests beyond it get a 503.
    """

    max_media_tokens: Positive = 16_384
    """Maximum number of prompt tokens of all images or audio of a request; the model determines how many each of them
    takes.
    """

    media_timeout: Positive = Field(10, le=600)
    """Seconds for fetching an image, and for decoding and preparing an image or audio; if it takes longer, the request
    gets a 400.
    """

    encoder_cache_bytes: int = Field(256 * 1024 * 1024, ge=0)
    """Maximum bytes of prepared images (files of each API process, next to `GENAI_MAX_PREPARED_BYTES`) and of encoded
    images and audio (memory of each engine) that are kept for later requests.
    """

    max_audio_body_bytes: Positive = 200 * 1024 * 1024
    """Maximum size of the body of a request with a recording, in bytes. The body is written to a file while it arrives.
    """

    max_audio_bodies_bytes: Positive = 2 * 1024 * 1024 * 1024
    """Maximum bytes of all bodies with recordings together in each API process, until they are decoded; requests beyond
    it get a 503. API keys share it as they share `GENAI_MAX_BODIES_BYTES`.
    """

    max_audio_seconds: Positive = Field(7200, le=86_400)
    """Maximum length of a recording, or of audio in a chat, in seconds. Each second takes 32 kB of disk space while a
    recording is transcribed.
    """

    max_waiting_audio_seconds: Positive = 345_600
    """Maximum number of seconds of recordings and audio that wait to be decoded, for each API key, or for all clients
    without a key together; requests beyond it get a 503. Until it is decoded, a file counts as the longest recording
    that its size allows.
    """

    max_prepared_bytes: Positive | Literal["auto"] = AUTO
    """Maximum bytes of disk space for the decoded recordings, prepared images and audio of all requests together. A
    request waits until it has space, and may use a quarter of the total. `auto` allows for eight of the longest
    recordings (`GENAI_MAX_AUDIO_SECONDS`) and for four requests with all the tokens of `GENAI_MAX_MEDIA_TOKENS`, which
    is 1.8 GB by default. Each API key may use at most as much as is left for others.
    """

    audio_timeout: Positive = Field(10, le=600)
    """Seconds for finding the next speech in a recording and preparing it; if it takes longer, the request gets a 400.
    Decoding may take one more second for each 15 kB of the file.
    """

    max_media_body_bytes: int = Field(96 * 1024 * 1024, ge=0)
    """Maximum size of a request body, in bytes, while a model that takes images or audio is served, if that is more
    than `GENAI_MAX_BODY_BYTES`. Base64 makes their files a third larger.
    """

    @field_validator("image_hosts")
    @classmethod
    def _are_hosts(cls, value: str) -> str:
        return checked_hosts(value)

    @field_validator("max_prepared_bytes")
    @classmethod
    def _has_space_for_the_longest(cls, value: int | Literal["auto"], info: ValidationInfo) -> int | Literal["auto"]:
        minimum = _REQUESTS * info.data.get("max_audio_seconds", 0) * BYTES_PER_SECOND
        if value != AUTO and value < minimum:
            raise ValueError(
                f"it must be at least {minimum}, four times what a recording of GENAI_MAX_AUDIO_SECONDS takes"
            )
        return value

    @property
    def prepared_bytes(self) -> int:
        """How many bytes of disk space the prepared (decoded for a model) images and audio of all requests together may
        take.
        """
        if self.max_prepared_bytes == AUTO:
            recordings = _LONGEST_RECORDINGS * self.max_audio_seconds * BYTES_PER_SECOND
            return max(recordings, _REQUESTS * self.max_media_tokens * _BYTES_PER_MEDIA_TOKEN)
        return self.max_prepared_bytes

    @property
    def prepared_bytes_per_request(self) -> int:
        """How many bytes of disk space the prepared (decoded for a model) images and audio of one request may take."""
        return self.prepared_bytes // _REQUESTS

    @property
    def allowed_image_hosts(self) -> frozenset[str]:
        """The hosts from which the server may fetch images, with their ports where given."""
        return host_set(self.image_hosts)
