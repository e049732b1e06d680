"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class SinglecronConfig(AppConfig):
    """Adds the history, its admin, the `singlecron` command and the system checks to a project."""

    name = "django_singlecron"
    verbose_name = _("cron jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from . import checks  # noqa: F401
