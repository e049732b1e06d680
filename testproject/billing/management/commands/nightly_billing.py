"""Bills every tenant, on one replica."""

from typing import Any

from django.core.management.base import BaseCommand

from django_singlecron import singleton_task
from testproject.billing.invoicing import bill_all_tenants


@singleton_task
class Command(BaseCommand):
    help = "Writes an invoice for every tenant."

    def handle(self, *args: Any, **options: Any) -> None:
        invoices = list(bill_all_tenants())
        self.stdout.write(f"{len(invoices)} invoices written.")
