"""A job that does as it is told."""

from typing import Any

from django.core.management.base import BaseCommand

from django_singlecron import singleton_task
from tests.jobs.orders import follow_orders


@singleton_task
class Command(BaseCommand):
    help = "Does what its standard input says, line by line."

    def handle(self, *args: Any, **options: Any) -> None:
        follow_orders(self.stdout)
