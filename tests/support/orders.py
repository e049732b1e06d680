"""Replicas whose job, `follow_orders`, goes on until it is told to end."""

from django_singlecron.models import JobRun
from tests.support.replicas import Replica, Replicas

JOB = "follow_orders"
BRIEF_JOB = "follow_orders_briefly"
"""The same, with a timeout of a second."""


def start_holding(replicas: Replicas, job: str = JOB) -> Replica:
    """Start a replica, and wait until its job is going on."""
    replica = replicas.manage(job)
    replica.expect("holding")
    return replica


def finish(replica: Replica) -> None:
    """Let the job come to its end, and wait for that of its replica."""
    replica.order("finish")
    assert replica.end() == 0, replica.err


def run_of(replica: Replica) -> JobRun:
    """Return the one attempt of a replica."""
    return JobRun.objects.get(pid=replica.pid)
