"""The settings for images and recordings in requests."""

import re

from pydantic import Field, field_validator

from genai_server.config.setting_form import Positive, SettingsForm
from genai_server.config.setting_lists import listed
from genai_server.quoted_values import quoted

_IMAGE_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")


class MediaSettings(SettingsForm):
    """The part of `Settings` about images and recordings. Times are in seconds, sizes in bytes."""

    image_hosts: str = ""
    """Comma-separated hosts with public addresses from which the server may fetch images, such as
    `images.example,cdn.example:8443`. Empty allows none: images are sent as data URLs.
    """

    max_media: Positive = 16
    """Maximum number of images or sounds in a request."""

    max_media_bytes: Positive = 20 * 1024 * 1024
    """Maximum size of the file of an image or sound, in bytes."""

    max_image_pixels: Positive = Field(50_000_000, le=500_000_000)
    """Maximum number of pixels of an image, width times height. A process that reads images may take 1 GiB and 40 bytes
    for each.
    """

    max_media_tokens: Positive = 16_384
    """Maximum number of prompt tokens of all images or sounds of a request; the model decides how many each takes."""

    media_timeout: Positive = Field(10, le=600)
    """Seconds for fetching an image, and for decoding and preparing an image or sound; a longer time results in a 400.
    """

    encoder_cache_bytes: int = Field(256 * 1024 * 1024, ge=0)
    """Maximum bytes of prepared images (files of each API process) and of encoded images and sounds (memory of each
    engine) that are kept for later requests.
    """

    max_audio_body_bytes: Positive = 200 * 1024 * 1024
    """Maximum size of the body of a request with a recording, in bytes. It is written to a file while it arrives."""

    max_audio_bodies_bytes: Positive = 2 * 1024 * 1024 * 1024
    """Maximum bytes of all these bodies together in each API process, until they are decoded; more get a 503. API keys
    share it as they share `GENAI_MAX_BODIES_BYTES`.
    """

    max_audio_seconds: Positive = Field(7200, le=86_400)
    """Maximum length of a recording, or of a sound in a chat, in seconds. Each of these takes 32 kB of disk space while
    a recording is transcribed.
    """

    audio_timeout: Positive = Field(10, le=600)
    """Seconds for finding the next speech in a recording and preparing it; a longer time results in a 400. Decoding may
    take one more for each 15 kB of the file.
    """

    max_media_body_bytes: int = Field(96 * 1024 * 1024, ge=0)
    """Maximum size of a request body, in bytes, while a model that takes images or sounds is served, if that is more
    than `GENAI_MAX_BODY_BYTES`. Base64 makes their files a third larger.
    """

    @field_validator("image_hosts")
    @classmethod
    def _are_hosts(cls, value: str) -> str:
        for host in filter(None, listed(value)):
            if not _IMAGE_HOST.fullmatch(host):
                raise ValueError(f"{quoted(host)} is not a host, such as images.example or cdn.example:8443")
        return value

    @property
    def allowed_image_hosts(self) -> frozenset[str]:
        """The hosts, with ports if given, from which images may be fetched."""
        return frozenset(host.lower() for host in listed(self.image_hosts) if host)
