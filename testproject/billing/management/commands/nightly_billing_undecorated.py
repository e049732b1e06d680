"""Bills every tenant, as the project did before: on every replica whose cron fires."""

from typing import Any

from django.core.management.base import BaseCommand

from testproject.billing.invoicing import bill_all_tenants


class Command(BaseCommand):
    help = "Writes an invoice for every tenant."

    def handle(self, *args: Any, **options: Any) -> None:
        invoices = list(bill_all_tenants())
        self.stdout.write(f"{len(invoices)} invoices written.")
