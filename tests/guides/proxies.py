"""nginx and Caddy with the configuration of docs/guides/reverse-proxy.md, in front of a running server."""

import getpass
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.guides.guide import Guide
from tests.running_server import free_port, wait_until

PAGE = Guide("reverse-proxy")
NAME = "llm.example.com"
_UPSTREAM = "127.0.0.1:8002"
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True)
class Proxy:
    """A running proxy: where the server is behind it, at the root and below a path, and what clients trust."""

    name: str
    port: int
    certificate: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    @contextmanager
    def client(self, key: str = "", *, address: str = "127.0.0.1") -> Iterator[httpx.Client]:
        """A client with its own connections from this address of the machine."""
        transport = httpx.HTTPTransport(verify=self.tls, local_address=address)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(base_url=self.url, transport=transport, headers=headers, timeout=90) as client:
            yield client


@contextmanager
def run_proxy(name: str, upstream: str, folder: Path) -> Iterator[Proxy]:
    """Run `nginx` or `caddy` with the guide's blocks before a server at an address; skips the test without it."""
    program = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        pytest.skip(f"{name} is not installed (scripts/install dev installs it in containers)")
    proxy = Proxy(name, free_port(), _certificate(folder))
    write = _nginx if name == "nginx" else _caddy
    config = write(proxy, upstream, folder)
    start = [program, "-p", str(folder), "-c", str(config)]
    if name == "caddy":
        start = [program, "run", "--config", str(config), "--adapter", "caddyfile"]
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(start, cwd=folder, env=_environment(folder), stdout=file, stderr=file)
    try:
        wait_until(lambda: process.poll() is not None or _answers(proxy))
        assert process.poll() is None, log.read_text()
        yield proxy
    finally:
        process.terminate()
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:  # Caddy waits for requests that still run
            process.kill()
            process.wait()


def _environment(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "PATH": "/usr/bin:/bin"}


def _answers(proxy: Proxy) -> bool:
    try:
        with proxy.client() as client:
            return client.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


def _certificate(folder: Path) -> Path:
    """A certificate for localhost next to its key, privkey.pem."""
    names = "subjectAltName=DNS:localhost,DNS:llm.example.com"
    made = folder / "fullchain.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", names, "-keyout", str(folder / "privkey.pem"), "-out", str(made)],
        check=True,
        capture_output=True,
    )
    return made


def _replaced(text: str, pattern: str, replacement: str) -> str:
    """The text with every match replaced; fails without any, because then the page has changed."""
    text, number = re.subn(pattern, replacement, text)
    assert number, pattern
    return text


def _nginx(proxy: Proxy, upstream: str, folder: Path) -> Path:
    site, below = PAGE.code("nginx")
    # Both locations at once.
    site = _replaced(site, r"\n\}\n$", f"\n{below}}}\n")
    site = _replaced(site, re.escape(_UPSTREAM), upstream)
    site = _replaced(site, r"listen 443", f"listen 127.0.0.1:{proxy.port}")
    site = _replaced(site, rf"server_name {NAME}", "server_name localhost")
    site = _replaced(site, rf"/etc/ssl/{NAME}", str(folder))
    folders = "".join(f"    {name}_temp_path {folder / 'nginx-temporary'}/{name};\n" for name in _TEMPORARY)
    (folder / "nginx-temporary").mkdir()
    config = folder / "nginx.conf"
    user = f"user {getpass.getuser()};\n" if getpass.getuser() == "root" else ""
    config.write_text(
        f"{user}worker_processes 1;\ndaemon off;\nerror_log {folder / 'nginx-error.log'};\n"
        f"pid {folder / 'nginx.pid'};\nevents {{}}\nhttp {{\n    access_log off;\n{folders}{site}}}\n"
    )
    return config


def _caddy(proxy: Proxy, upstream: str, folder: Path) -> Path:
    site, below = PAGE.code("caddy")
    site = _replaced(site, rf"(?s)^{NAME} \{{\n(.*)\}}\n$", r"\1")
    below = _replaced(below, r"(?s)^example\.com \{\n(.*)\}\n$", r"\1")
    lines = _replaced(site + below, re.escape(_UPSTREAM), upstream)
    config = folder / "Caddyfile"
    tls = f"\ttls {proxy.certificate} {folder / 'privkey.pem'}\n"
    config.write_text(f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{proxy.url} {{\n{tls}{lines}}}\n")
    return config
