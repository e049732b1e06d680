"""The work of the cron jobs, which knows nothing of cron."""

from collections.abc import Iterator

from .models import Invoice, Tenant


def bill_all_tenants() -> Iterator[Invoice]:
    """Write an invoice for each tenant, and yield it."""
    for tenant in Tenant.objects.order_by("name"):
        yield Invoice.objects.create(tenant=tenant, amount=tenant.monthly_fee)
