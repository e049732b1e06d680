"""A command whose lock another replica holds while the benchmark calls it."""

from typing import Any

from django.core.management.base import BaseCommand

from django_singlecron import singleton_task


@singleton_task
class Command(BaseCommand):
    help = "Does nothing."

    def handle(self, *args: Any, **options: Any) -> None: ...
