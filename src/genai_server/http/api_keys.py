"""The API keys that the server accepts: those listed in the settings, and those in a key file with a name, a hash and
limits for each. `ApiKeys` finds the key of a request, and `Access` says what an authenticated request may do.

Only hashes are stored and compared. A plain SHA-256 suffices: unlike a password, an API key is long and random and
cannot be guessed. A slow hash, computed for each request, would make denial-of-service attacks cheap.

This module only reads the limits of a key. http/rate_limit.py applies its limits of requests, and
generation/generate.py its limits of tokens.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from genai_server.config.setting_form import environment_variable
from genai_server.config.settings import Settings
from genai_server.errors import ConfigurationError, quoted

log = logging.getLogger(__name__)

MIN_KEY_LENGTH = 16
# What operators see in place of a name for requests with the admin key. No API key can have this name.
ADMIN_KEY_NAME = "(admin)"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NAME_CHARACTERS = "letters, digits, dots, dashes and underscores"
# Visible characters that have no special meaning in key lists and headers.
_KEY = re.compile(r"[!-+\--9;-~]+")
_LINE = re.compile(r"(?P<name>\S+)\s+sha256:(?P<digest>[0-9a-f]{64})(?P<words>(\s+\S+)*)")
_LIMIT = re.compile(r"(concurrent|rate|thinking_budget)=([0-9]{1,6})")
_ABSOLUTE = "priority=absolute"


@dataclass(frozen=True)
class ApiKey:
    """An API key that the server accepts: its holder's name, its hash, and its own limits and rights. `load_keys`
    creates it.
    """

    # Name of the key's holder.
    name: str
    # SHA-256 of the key.
    digest: bytes
    # Limits of concurrent answers and of requests per minute; None uses the settings' limits.
    concurrent: int | None = None
    rate: int | None = None
    # Whether the `priority` of its requests counts next to those of other keys; otherwise it orders its own ones only.
    has_absolute_priority: bool = False
    # Maximum number of tokens of reasoning of its answers whose requests have no budget; None uses the model's.
    thinking_budget: int | None = None


@dataclass(frozen=True)
class Access:
    """What an authenticated request is allowed to do, and the API key with which it was sent. The middleware
    Authentication creates it for each request.
    """

    # The API key; None for the admin key, and where no key is needed.
    key: ApiKey | None = None
    is_admin: bool = False
    # Differs between keys, the admin key included; None where no key is needed.
    digest: bytes | None = None
    # Whether there is an admin key, without which programs on this machine may use the admin endpoints.
    has_admin_key: bool = False
    # Whether only this machine can reach the server, as far as is known.
    on_loopback: bool = False

    @property
    def key_name(self) -> str:
        """The name of the request's API key, for operators; a fixed name for the admin key, and "" where no key is
        needed.
        """
        if self.key is not None:
            return self.key.name
        return ADMIN_KEY_NAME if self.is_admin else ""

    @property
    def has_absolute_priority(self) -> bool:
        """Whether the field `priority` in requests of this key also counts against requests of other keys. If not, it
        only orders the key's own requests.
        """
        return self.digest is not None and (self.is_admin or (self.key is not None and self.key.has_absolute_priority))


class ApiKeys:
    """All API keys of the settings and of the key file, for looking up the key of a request. If neither is set,
    `required` is False, and requests need no key. `load_keys` creates it.
    """

    def __init__(self, listed: tuple[ApiKey, ...] = (), file: Path | None = None) -> None:
        self.required = bool(listed) or file is not None
        self._listed = listed
        self._file = file
        self._keys = self._all()

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._keys)

    def find(self, text: str) -> ApiKey | None:
        """Return the API key whose text is `text`; None if there is none. The duration of a call does not reveal how
        much of a wrong text is right.
        """
        digest = hash_key(text)
        match = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                match = key
        return match

    def reread(self) -> None:
        """Read the key file again, after it was changed. If the file is invalid, the keys remain unchanged and the
        reason is logged.
        """
        try:
            self._keys = self._all()
        except ConfigurationError as error:
            log.error("the API keys are unchanged: %s", error)
        else:
            log.info("reloaded %s; number of API keys: %d", self._file, len(self._keys))

    def _all(self) -> tuple[ApiKey, ...]:
        keys = (*self._listed, *(_from_file(self._file) if self._file is not None else ()))
        names = [key.name for key in keys]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"two API keys have the name {name}")
        return keys


def load_keys(settings: Settings) -> ApiKeys:
    """Return the API keys that the settings list (GENAI_API_KEYS) and those in the key file that they name
    (GENAI_API_KEY_FILE).

    Raises ConfigurationError for an invalid key, for one that is also the admin key, and for limits per key without any
    keys. The message never shows a key.
    """
    listed = tuple(_from_list(settings.api_keys or ""))
    keys = ApiKeys(listed, Path(settings.api_key_file) if settings.api_key_file else None)
    if settings.admin_api_key:
        _check_strength("GENAI_ADMIN_API_KEY", settings.admin_api_key)
        if (match := keys.find(settings.admin_api_key)) is not None:
            raise ConfigurationError(
                f"GENAI_ADMIN_API_KEY: it must differ from all API keys, but is the key of {match.name}"
            )
    for name in ("max_concurrent_per_key", "rate_per_key"):
        if getattr(settings, name) and not keys.required:
            raise ConfigurationError(
                f"{environment_variable(name)}={getattr(settings, name)}: it applies to each key; "
                "set GENAI_API_KEYS or GENAI_API_KEY_FILE"
            )
    return keys


def make_key() -> str:
    """Return a new random API key with 256 bits of entropy."""
    return f"gs-{secrets.token_urlsafe(32)}"


def line_of(name: str, key: str, concurrent: int | None = None, rate: int | None = None) -> str:
    """Return a line for the key file, with the name, the hash and the limits of the API key `key`. The key itself
    cannot be derived from the line.

    `concurrent` is the maximum number of concurrent answers, `rate` the maximum number of requests per minute. For
    None, the limit in the settings applies. Raises ConfigurationError for an invalid name or limit.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"the name of a key must have 1 to 64 {_NAME_CHARACTERS}; given {quoted(name)}")
    limits = {"concurrent": concurrent, "rate": rate}
    parts = [f"{limit}={number}" for limit, number in limits.items() if number is not None]
    if wrong := next((limit for limit in parts if not _LIMIT.fullmatch(limit)), None):
        raise ConfigurationError(f"a limit of a key must have at most 6 digits; given {wrong}")
    return " ".join([name, f"sha256:{hash_key(key).hex()}", *parts])


def append_line(path: Path, name: str, line: str) -> None:
    """Append `line`, which describes the API key with the name `name`, to the key file `path`. A new file is created so
    that only its owner can read it.

    Raises ConfigurationError if the file is invalid, has a key with this name already, or cannot be written.
    """
    try:
        if path.exists() and name in (key.name for key in _from_file(path)):
            raise ConfigurationError(f"{path} has a key of the name {name} already")
        with open(path, "a+", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            file.seek(0)
            before = file.read()
            file.write(f"{line}\n" if before.endswith("\n") or not before else f"\n{line}\n")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None


def hash_key(key: str) -> bytes:
    """Return the SHA-256 of an API key, by which keys are stored and compared."""
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _check_strength(label: str, key: str) -> None:
    """Raise ConfigurationError if a key is too short or has characters that a key may not have. `label` names the key
    in the message, which never shows it.
    """
    if len(key) < MIN_KEY_LENGTH or not _KEY.fullmatch(key):
        raise ConfigurationError(
            f"{label} must have at least {MIN_KEY_LENGTH} characters, all of them visible ASCII "
            f"except comma and colon; given {len(key)} (genai-server key generates one)"
        )


def _from_list(text: str) -> Iterator[ApiKey]:
    for n, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, colon, key = entry.rpartition(":")
        name = name if colon else f"key-{n}"
        if not NAME.fullmatch(name):
            raise ConfigurationError(f"GENAI_API_KEYS: the name of entry {n} must have 1 to 64 {_NAME_CHARACTERS}")
        _check_strength(f"GENAI_API_KEYS: key {name}", key)
        yield ApiKey(name, hash_key(key))


def _from_file(path: Path) -> Iterator[ApiKey]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"GENAI_API_KEY_FILE={path}: cannot be read: {reason}") from None
    for number, line in enumerate(lines, 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        entry = _LINE.fullmatch(line)
        words = entry["words"].split() if entry else []
        limits = [_LIMIT.fullmatch(word) for word in words if word != _ABSOLUTE]
        if entry is None or None in limits or not NAME.fullmatch(entry["name"]):
            raise ConfigurationError(
                f"GENAI_API_KEY_FILE={path}: line {number} must be NAME sha256:HASH, as genai-server key prints it, "
                "followed by concurrent=N or rate=N if the key has limits of its own, thinking_budget=N if it has a "
                f"budget of reasoning, and {_ABSOLUTE} if its priority counts next to other keys"
            )
        limit_values = {limit[1]: int(limit[2]) for limit in limits if limit}
        digest = bytes.fromhex(entry["digest"])
        limits_of_key = limit_values.get("concurrent"), limit_values.get("rate")
        yield ApiKey(entry["name"], digest, *limits_of_key, _ABSOLUTE in words, limit_values.get("thinking_budget"))
