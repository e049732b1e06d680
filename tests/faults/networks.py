"""A network of the suite's own: a replica's host and a server's, in namespaces, and a router between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.services import service_missing

# Of the ranges that are kept for documentation, so that they are nobody's: each host's, and the router's on its side.
REPLICA, SERVER = "replica", "server"
ADDRESSES = {REPLICA: ("192.0.2.2", "192.0.2.1"), SERVER: ("198.51.100.2", "198.51.100.1")}


class Network:
    """Two hosts, whose packets to each other are dropped without a word when the network is `cut`."""

    def __init__(self) -> None:
        self._router = self._name("router")

    def enter(self, host: str) -> list[str]:
        """The command that runs another on a host."""
        return ["ip", "netns", "exec", self._name(host)]

    def make(self) -> None:
        self._add_namespace("router")
        subprocess.run(
            [*self.enter("router"), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True, timeout=30
        )
        for host in ADDRESSES:
            self._add_host(host)

    def cut(self) -> None:
        """Drop all packets in the router, both ways: the hosts' own interfaces are as before."""
        for address, _ in ADDRESSES.values():
            self._ip("-n", self._router, "route", "add", "blackhole", f"{address}/32")

    def mend(self) -> None:
        for address, _ in ADDRESSES.values():
            self._ip("-n", self._router, "route", "del", "blackhole", f"{address}/32")

    def replace(self, host: str) -> None:
        """Put another host at the address of this one, as after a power cut: it knows of no connection.

        Processes that are left on the former are cut off for good.
        """
        self._ip("-n", self._router, "link", "del", host)
        self._ip("netns", "del", self._name(host))
        self._add_host(host)

    def destroy(self) -> None:
        for host in ("router", *ADDRESSES):
            subprocess.run(["ip", "netns", "del", self._name(host)], capture_output=True, timeout=30)

    def _add_host(self, host: str) -> None:
        self._add_namespace(host)
        namespace = self._name(host)
        self._ip("link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", host, "netns", self._router)
        for where, device, address in zip((namespace, self._router), ("eth0", host), ADDRESSES[host], strict=True):
            self._ip("-n", where, "address", "add", f"{address}/30", "dev", device)
            self._ip("-n", where, "link", "set", device, "up")
        self._ip("-n", namespace, "route", "add", "default", "via", ADDRESSES[host][1])

    def _add_namespace(self, host: str) -> None:
        self._ip("netns", "add", self._name(host))
        self._ip("-n", self._name(host), "link", "set", "lo", "up")

    @staticmethod
    def _name(host: str) -> str:
        return f"singlecron-{os.getpid()}-{host}"

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, timeout=30)


@contextmanager
def network_between_hosts() -> Iterator[Network]:
    """Have a network in the block; skip the test, or fail it in CI, where there can be none."""
    if os.geteuid() != 0:
        service_missing("root, who alone makes network namespaces: run the tests as root, in a container for instance")
    if shutil.which("ip") is None:
        service_missing("network namespaces: apt-get install iproute2")
    network = Network()
    try:
        network.make()
        yield network
    finally:
        network.destroy()
