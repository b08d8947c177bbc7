"""Rules about network addresses: whether an IP address reaches this machine or the public internet, which host a URL
names, and whether that host is in a list of allowed hosts.
"""

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

# The port of a URL that names none, by its scheme.
DEFAULT_PORTS = {"http": 80, "https": 443}
# Maximum number of characters of a URL that a request names.
MAX_URL = 8192
# Printable ASCII characters without a backslash.
_URL = re.compile(r"[!-\[\]-~]+")
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")


@lru_cache(maxsize=16)  # called for each request
def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address means this machine: `localhost` or a loopback address. Names are not
    looked up.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet, and not to this machine or its networks. Raises
    ValueError for a text that is not an IP address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.sixtofour is not None or ip.teredo is not None:  # lead to an IPv4 address by a gateway
            return False
        if ip.ipv4_mapped is None and ip not in _PUBLIC_IPV6:
            return False
        ip = ip.ipv4_mapped or ip
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_link_local or ip.is_unspecified)


def has_url_characters(text: str) -> bool:
    """Return whether a text consists only of characters that a URL may contain: printable ASCII without blanks and
    backslashes.
    """
    return _URL.fullmatch(text) is not None


def host_of(parts: SplitResult) -> str:
    """Return the host of an http or https URL, given by its parts, in the form in which operators list allowed hosts:
    with a port only if it is not the scheme's default.

    Raises ValueError for a port that is not a number.
    """
    host = (parts.hostname or "").rstrip(".")
    shown = f"[{host}]" if ":" in host else host
    return shown if parts.port in (None, DEFAULT_PORTS[parts.scheme]) else f"{shown}:{parts.port}"


def is_at(url: str, hosts: Collection[str]) -> bool:
    """Return whether a text is an http or https URL whose host is one of `hosts` (in the form of `host_of`). False for
    a URL with a user's name and password.
    """
    if not hosts or len(url) > MAX_URL or not has_url_characters(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in DEFAULT_PORTS and "@" not in parts.netloc and host_of(parts) in hosts
    except ValueError:
        return False
