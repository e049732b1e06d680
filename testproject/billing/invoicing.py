"""The work of the cron jobs, which knows nothing of cron."""

import time
from collections.abc import Iterator

from django.conf import settings

from .models import Invoice, Tenant


def bill_all_tenants() -> Iterator[Invoice]:
    """Write an invoice for each tenant, and yield it."""
    for tenant in Tenant.objects.order_by("name"):
        invoice = Invoice.objects.create(tenant=tenant, amount=tenant.monthly_fee)
        render(invoice)
        yield invoice


def render(invoice: Invoice) -> None:
    """Stand in for the printing service, which takes its time over each invoice."""
    time.sleep(settings.RENDERING_SECONDS)
