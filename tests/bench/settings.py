"""The test project with the benchmark's commands, on the benchmark's two databases."""

from testproject.settings import *  # noqa: F403  # a settings module that varies another
from testproject.settings import DATABASES as _DATABASES
from testproject.settings import INSTALLED_APPS as _APPS

DEBUG = False
INSTALLED_APPS = [*_APPS, "tests.bench"]

# A warm connection stays open between calls.
_SMALL = {**_DATABASES["default"], "CONN_MAX_AGE": None}
DATABASES = {"default": _SMALL, "large": {**_SMALL, "NAME": f"{_SMALL['NAME']}_large"}}
