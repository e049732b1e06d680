"""The same command, decorated."""

from django_singlecron import singleton_task

from . import probe


@singleton_task
class Command(probe.Command):
    pass
