"""Settings of a replica's checkout, into which the test copies the packages and `replica.json`."""

import json
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPLICA = json.loads((HERE / "replica.json").read_text())
# cron's environment names no database.
os.environ["DATABASE_URL"] = REPLICA["database"]

from django_singlecron.cronjobs import cronjobs  # noqa: E402
from testproject.settings import *  # noqa: E402, F403
from testproject.settings import INSTALLED_APPS as APPS_OF_THE_PROJECT  # noqa: E402

INSTALLED_APPS = [*APPS_OF_THE_PROJECT, "firing"]

CRONJOBS = cronjobs("firing")
CRONTAB_COMMENT = REPLICA["name"]
CRONTAB_DJANGO_MANAGE_PATH = str(HERE / "testproject" / "manage.py")
CRONTAB_DJANGO_SETTINGS_MODULE = "replica_settings"
CRONTAB_COMMAND_SUFFIX = f">> {HERE}/log 2>&1"

HANG = Path(REPLICA["hang"])
"""The run that finds this file takes it away, and hangs until it is killed."""
ENVIRONMENT = HERE / "environment"
"""Where a run leaves the environment that cron gave it."""
