"""What IP addresses reach."""

import pytest

from genai_server.system.addresses import is_public

PUBLIC = "93.184.215.14 2606:2800:21f:cb07:6820:80da:af6b:8b2c ::ffff:93.184.215.14"
OTHERS = (
    "127.0.0.1 0.0.0.0 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 224.0.0.1 255.255.255.255 240.0.0.1 "
    "192.0.2.1 ::1 :: ::ffff:127.0.0.1 ::127.0.0.1 fe80::1%eth0 fc00::1 fec0::1 ff02::1 2002:7f00:1:: 2001:0:7f00:1:: "
    "64:ff9b::7f00:1 2001:db8::1"
)


@pytest.mark.parametrize("address", [*PUBLIC.split(), *OTHERS.split()])
def test_address_is_public(address: str) -> None:
    assert is_public(address) is (address in PUBLIC.split())
