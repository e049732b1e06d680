"""The Django app."""

from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, register
from django.utils.translation import gettext_lazy as _


class SinglecronConfig(AppConfig):
    """Adds the history, its admin, the `singlecron` command and the system checks to a project."""

    name = "django_singlecron"
    verbose_name = _("cron jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        register(run_checks)
        register(run_database_checks, Tags.database)


# Their module is imported by the processes that check: the others would pay for it as they start.


def run_checks(**kwargs: Any) -> list[CheckMessage]:
    """Check the project's setting, tasks and databases."""
    from . import checks

    return checks.run_checks(**kwargs)


def run_database_checks(**kwargs: Any) -> list[CheckMessage]:
    """Check what the databases hold."""
    from . import checks

    return checks.run_database_checks(**kwargs)
