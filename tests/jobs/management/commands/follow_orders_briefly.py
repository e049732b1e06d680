"""A job that does as it is told, for a second."""

from typing import Any

from django.core.management.base import BaseCommand

from django_singlecron import singleton_task
from tests.jobs.orders import follow_orders


@singleton_task(timeout=1)
class Command(BaseCommand):
    help = "Does what its standard input says, line by line, for a second at most."

    def handle(self, *args: Any, **options: Any) -> None:
        follow_orders(self.stdout)
