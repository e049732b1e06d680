"""Tenants, and what they are billed."""

from django.db import models


class Tenant(models.Model):
    """A customer."""

    name = models.CharField(max_length=100, unique=True)
    monthly_fee = models.DecimalField(max_digits=8, decimal_places=2)

    def __str__(self) -> str:
        return self.name


class Invoice(models.Model):
    """One bill of one tenant. Nothing here forbids a second one: that is the cron job's mistake to make."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="invoices")
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    reminded = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.tenant}: {self.amount}"
