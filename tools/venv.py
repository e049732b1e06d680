"""The virtual environment in `.venv`: `python -m tools.venv create`, and in it `install GROUP`. Needs only Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections import deque

from .progress import Say, step

DIRECTORY = ".venv"
OLDEST_PIP = (25, 1)  # the first that installs dependency groups


def create() -> None:
    """Make `.venv`, in place of one whose Python is gone."""
    try:
        with step(f"Making {DIRECTORY} with Python {sys.version.split()[0]}"):
            venv.create(DIRECTORY, clear=True, with_pip=True)
    except BaseException:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        raise


def install(group: str) -> None:
    """Install the project, so that changes to it take effect, and one of its dependency groups."""
    if _pip_version() < OLDEST_PIP:
        with step("Upgrading pip") as say:
            _pip(say, "--upgrade", f"pip>={OLDEST_PIP[0]}.{OLDEST_PIP[1]}")
    with step(f'Installing the project and its dependency group "{group}"') as say:
        _pip(say, "--editable", ".", "--group", group)


def _pip_version() -> tuple[int, ...]:
    import pip

    return tuple(int(part) for part in pip.__version__.split(".")[:2])


def _pip(say: Say, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    last_lines: deque[str] = deque(maxlen=30)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last_lines.append(line)
            say(line.strip())
    if process.returncode:
        sys.exit(f"{''.join(last_lines)}\nThe above went wrong in: {' '.join(command)}")


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["create"]:
            create()
        else:
            install(sys.argv[2])
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
