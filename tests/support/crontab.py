"""A stand-in for the crontab program, with a table of its own."""

import shlex
from pathlib import Path

# What it does for django-crontab: list the table, and install one from a file.
PROGRAM = """\
#!/bin/sh
if [ "$1" = -l ]; then cat {table}; else cp "$1" {table}; fi
"""


def write_program(program: Path, table: Path) -> None:
    """Write a program that keeps the lines of a crontab in the file `table`."""
    table.touch()
    program.write_text(PROGRAM.format(table=shlex.quote(str(table))))
    program.chmod(0o755)
