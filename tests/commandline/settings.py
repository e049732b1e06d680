"""The test project with commands and jobs that fail, exit and echo, for tests that need a process of their own."""

import os
from pathlib import Path

from testproject import settings as project
from testproject.settings import *  # noqa: F403  # as settings modules extend one another

INSTALLED_APPS = [*project.INSTALLED_APPS, "tests.commandline"]
CRONJOBS = [
    ("* * * * *", "tests.commandline.cron.succeed"),
    ("* * * * *", "tests.commandline.cron.fail"),
    ("* * * * *", "tests.commandline.cron.leave_with", [0]),
    ("* * * * *", "tests.commandline.cron.leave_with", [3]),
    ("* * * * *", "django.core.management.call_command", ["probe_decorated", "fail", "5"]),
    ("* * * * *", "django.core.management.call_command", ["singlecron", "run", "probe", "fail", "5"]),
]
CRONTAB_DJANGO_MANAGE_PATH = str(Path(project.__file__).with_name("manage.py"))
# A crontab of the test's own, never that of whoever runs it.
CRONTAB_EXECUTABLE = os.environ.get("TEST_CRONTAB", "/bin/false")
