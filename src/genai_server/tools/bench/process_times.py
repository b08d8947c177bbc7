"""CPU time of a server on this machine."""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

import psutil


class ServerProcesses:
    """The processes that listen on one port. Engine processes are not among these."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes

    def cpu_seconds(self) -> float | None:
        """Their total CPU time up to now; None after one of them has ended."""
        try:
            times = [process.cpu_times() for process in self._processes]
        except psutil.Error:
            return None
        return sum(each.user + each.system for each in times)


def server_processes(url: str) -> ServerProcesses | None:
    """The processes behind a URL; None if they are on another machine, or belong to another user."""
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or ""):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        sockets = psutil.net_connections(kind="tcp")  # macOS allows this only for root
        listening = [each for each in sockets if each.status == psutil.CONN_LISTEN]
        pids = {each.pid for each in listening if each.pid is not None and each.laddr and each.laddr.port == port}
        return ServerProcesses([psutil.Process(pid) for pid in pids]) if pids else None
    except psutil.Error:
        return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
