"""The test project as it would be without the app."""

from tests.bench.settings import *  # noqa: F403  # a settings module that varies another
from tests.bench.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [app for app in _APPS if app != "django_singlecron"]
