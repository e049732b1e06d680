"""The test project's settings for the processes that tests start: with jobs that do as a test bids them."""

import os

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS as APPS_OF_THE_PROJECT

INSTALLED_APPS = [*APPS_OF_THE_PROJECT, "tests.jobs"]

CRONJOBS = [("0 4 * * *", "tests.jobs.cron.fail"), ("0 5 * * *", "tests.jobs.cron.add_tenant")]
CRONTAB_DJANGO_PROJECT_NAME = "testproject"
# A test has its own table of cron jobs: never that of whoever runs the tests.
CRONTAB_EXECUTABLE = os.environ.get("TEST_CRONTAB", "false")
