"""Cases on a server of the suite's own, which a test may shut down, kill and start again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from django.db import connections

from django_singlecron.models import JobRun
from tests.faults import jobs
from tests.faults.checker import default_connection
from tests.faults.clusters import Cluster
from tests.faults.proxy import Proxy
from tests.faults.replicas import Attempt, Case, Workers
from tests.faults.steps import Point
from tests.support.sessions import Watcher


class ServerCase(Case):
    """Replicas on a cluster, which is this thread's default connection."""

    def __init__(self, workers: Workers, proxy: Proxy, watcher: Watcher, directory: Path, cluster: Cluster) -> None:
        super().__init__(workers, proxy, watcher, directory)
        self.cluster = cluster

    def cut_at(self, point: Point, **arguments: Any) -> Attempt:
        """Start a replica, wait until it is stopped at a point, and say that its server is about to end."""
        attempt, _ = self.stopped_at(point, **arguments)
        attempt.cut()
        return attempt

    def let_notice(self, point: Point) -> None:
        """Let what is stopped at a point go on; an answer that the server had under way when it ended is lost."""
        if point.when == "after":
            self.proxy.reset()
        else:
            self.proxy.go_on()

    def forget_connections(self) -> None:
        """Close those of this process, which the server's end has broken."""
        connections["default"].close()
        self.watcher.close()

    def check(self, **options: Any) -> None:
        self.forget_connections()
        super().check(**options)


@contextmanager
def server_case(
    workers: Workers, cluster: Cluster, directory: Path, through: str | tuple[str, int] | None = None
) -> Iterator[ServerCase]:
    """Have replicas on a cluster that has seen no attempt yet. The test ends with `case.check()`.

    Arguments: `through`, the socket or the address of what the proxy connects to in place of the cluster.
    """
    with ExitStack() as stack:
        stack.enter_context(default_connection(cluster.connect()))
        stack.callback(lambda: connections["default"].close())
        JobRun.objects.all().delete()
        jobs.create_work(connections["default"])
        watcher = Watcher(connections["default"])
        stack.callback(watcher.close)
        proxy = stack.enter_context(Proxy(through or ("127.0.0.1", int(cluster.port))))
        case = ServerCase(workers, proxy, watcher, directory, cluster)
        stack.callback(case.destroy)
        yield case
        assert case.checked, "The test forgot to check."


def settings_of(*clusters: Cluster, **options: Any) -> Mapping[str, Any]:
    """Return Django's settings for the first of these servers that takes writes."""
    hosts = {"HOST": ",".join(str(each.directory) for each in clusters), "PORT": ",".join(c.port for c in clusters)}
    return clusters[0].database(**hosts, OPTIONS={"target_session_attrs": "read-write", **options})
