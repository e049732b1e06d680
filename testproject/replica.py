"""One replica of the demo: is ready to fire a job, and fires it when told to, as its cron would.

`python -m testproject.replica NAME COMMAND`, with "go" on standard input.
"""

import os
import sys

import django
from django.core.management import execute_from_command_line


def main(command: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    print("ready", flush=True)
    if sys.stdin.readline():  # nothing when the demo has gone
        sys.argv = ["manage.py", command]
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main(sys.argv[2])
