"""Tenants and invoices in the admin."""

from django.contrib import admin

from .models import Invoice, Tenant


@admin.register(Tenant)
class TenantAdmin(admin.ModelAdmin):
    list_display = ("name", "monthly_fee")
    search_fields = ("name",)
    ordering = ("name",)


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):
    list_display = ("tenant", "amount", "created_at", "reminded")
    list_filter = ("reminded",)
    list_select_related = ("tenant",)
    autocomplete_fields = ("tenant",)
    ordering = ("-id",)
