"""Functions that django-crontab calls."""

import logging

from django_singlecron import singleton_task

from .models import Invoice

logger = logging.getLogger(__name__)


@singleton_task
def send_reminders() -> int:
    """Remind the tenants of their invoices, each once; return how many."""
    count = Invoice.objects.filter(reminded=False).update(reminded=True)
    logger.warning("%s reminders sent.", count)
    return count
