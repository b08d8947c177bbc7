"""Which addresses are this machine's own."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine, whatever a name server says."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
