"""What a skipped command is compared with."""

from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Does nothing."

    def handle(self, *args: Any, **options: Any) -> None: ...
