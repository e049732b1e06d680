"""A reader's project, made by `startproject`, in which the snippets of a document are tried in their order."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import yaml
from django.db import connection

from tests.documentation.bench import check_bench_output
from tests.documentation.cron import check_schedule, commands_of
from tests.documentation.snippets import README, ROOT, Snippet, read_snippets
from tests.support.crontab import write_program

PATIENCE = 60.0
"""Seconds after which a command is taken for hanging."""

SETTINGS = "mysite/settings.py"
COMMAND = "billing/management/commands/nightly_billing.py"

MODELS = """\
from django.db import models


class Tenant(models.Model):
    name = models.CharField(max_length=100)
    monthly_fee = models.DecimalField(max_digits=8, decimal_places=2)


class Invoice(models.Model):
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE)
    month = models.CharField(max_length=7, default="2026-11")
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    reminded = models.BooleanField(default=False)
"""

LOCK_IS_HELD = """
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
"""


class Project:
    """A Django project with the app `billing`, on a database of its own."""

    def __init__(self, directory: Path, database: dict[str, Any]) -> None:
        self.directory = directory
        self._database = database
        self._background: list[subprocess.Popen[str]] = []
        self._unread: list[str] = []

    def create(self, *, installed: bool) -> None:
        """Make the project as it was before its reader heard of django-singlecron, or with that `installed`."""
        interpreter = self.directory / ".venv" / "bin" / "python"
        interpreter.parent.mkdir(parents=True)
        interpreter.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        interpreter.chmod(0o755)
        self.shell("python -m django startproject mysite .")
        (self.directory / COMMAND).parent.mkdir(parents=True)
        for package in ("billing", "billing/management", "billing/management/commands"):
            (self.directory / package / "__init__.py").touch()
        (self.directory / "billing" / "models.py").write_text(MODELS)
        apps = ["billing", *(["django_singlecron"] if installed else [])]
        self._extend_settings(f"INSTALLED_APPS += {apps!r}\nDATABASES = {{'default': {self._database!r}}}\n")
        self._make_crontab()
        if installed:
            self._write_command()
        self.shell("python manage.py migrate --run-syncdb")

    def _make_crontab(self) -> None:
        """Give django-crontab a table of its own, never that of whoever runs the tests."""
        program, table = self.directory / "crontab", self.directory / "crontab.table"
        write_program(program, table)
        self._extend_settings(f"CRONTAB_EXECUTABLE = {str(program)!r}")

    def _write_command(self) -> None:
        """Write the command that the README's reader has decorated."""
        texts = [snippet.text for snippet in read_snippets(README) if _path_of(snippet.text) == COMMAND]
        assert len(texts) == 1, f"the README shows {COMMAND} {len(texts)} times"
        (self.directory / COMMAND).write_text(texts[0])

    def destroy(self) -> None:
        """End what runs in the background."""
        for process in self._background:
            process.kill()
            process.wait()

    def shell(self, command: str, exit_code: int = 0) -> str:
        """Run a command line in the project's directory; return what it printed. Fail on another exit code."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == exit_code, f"{command}\nexited with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def try_out(self, snippet: Snippet) -> None:
        """Do what a reader would do with a snippet; fail when it does not work, or when nothing here can try it."""
        trials = {
            "python": self._try_python,
            "console": self._try_console,
            "crontab": self._try_crontab,
            "yaml": self._try_kubernetes,
            "ini": self._try_ini,
            "sql": self._try_sql,
            "text": check_bench_output,
        }
        assert snippet.language in trials, f"{snippet.place}: nothing tries snippets of this language"
        try:
            trials[snippet.language](snippet.text)
        except AssertionError as error:
            raise AssertionError(f"{snippet.place}: {error}") from error

    def python(self, code: str) -> str:
        """Run code in the project, as a script that has set Django up."""
        imports = "".join(f"import {module}\n" for module in self._unread)
        self._unread = []
        script = self.directory / "snippet.py"
        script.write_text(f"import django\n\ndjango.setup()\n\n{imports}\n{code}")
        return self.shell("python snippet.py")

    def finish(self) -> None:
        """Import the files that no later snippet has imported."""
        self.python("")

    def _try_python(self, text: str) -> None:
        path = _path_of(text)
        if path is None:
            self.python(text)
        elif path == SETTINGS:
            self._extend_settings(text)
            if "CRONJOBS" in text:
                self._run_cronjobs()
        else:
            (self.directory / path).write_text(text)
            self._unread.append(path.removesuffix(".py").replace("/", "."))

    def _run_cronjobs(self) -> None:
        """Install what the settings say by django-crontab, and run each line once."""
        self.shell("python manage.py crontab add --verbosity 0")
        commands = list(commands_of((self.directory / "crontab.table").read_text()))
        assert commands, "the settings put nothing into the crontab"
        for command in commands:
            self.shell(command)

    def _try_console(self, text: str) -> None:
        for command, expected in _read_console(text):
            if command.startswith("pip install "):
                _check_installation(command)
            elif command.startswith("make "):
                _check_target(command.removeprefix("make "))
            elif command.endswith("&"):
                self._start(command.removesuffix("&"))
            else:
                self._run_and_compare(command, expected)

    def _run_and_compare(self, command: str, expected: list[str]) -> None:
        exit_code = 0
        if expected and (match := re.fullmatch(r"\[exit code (\d+)\]", expected[-1])):
            exit_code = int(match[1])
            expected = expected[:-1]
        printed = self.shell(command, exit_code)
        pattern = "\n".join(re.escape(line).replace("…", r".+" if line != "…" else r"(?s:.*)") for line in expected)
        assert not expected or re.fullmatch(pattern, printed.strip()), f"{command}\nprinted:\n{printed}"

    def _start(self, command: str) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._background.append(process)
        deadline = time.monotonic() + PATIENCE
        while not self._query(LOCK_IS_HELD):
            assert process.poll() is None, f"{command}\nended before it held its lock"
            assert time.monotonic() < deadline, f"{command}\ndid not get its lock"
            time.sleep(0.05)

    def _try_crontab(self, text: str) -> None:
        for command in commands_of(text):
            self.shell(command.replace("/srv/mysite", shlex.quote(str(self.directory))))

    def _try_kubernetes(self, text: str) -> None:
        manifest = yaml.safe_load(text)
        if manifest["kind"] == "Deployment":
            self._try_deployment(manifest)
            return
        assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "CronJob")
        check_schedule(manifest["spec"]["schedule"])
        pod = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert pod["restartPolicy"] in ("Never", "OnFailure")
        for container in pod["containers"]:
            self.shell(shlex.join(container["command"]))

    def _try_deployment(self, manifest: dict[str, Any]) -> None:
        """Run what comes before its containers, which go on for ever."""
        assert manifest["apiVersion"] == "apps/v1"
        template = manifest["spec"]["template"]
        assert manifest["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        for container in template["spec"]["initContainers"]:
            self.shell(shlex.join(container["command"]))

    def _try_ini(self, text: str) -> None:
        unit = re.match(r"# ([\w-]+\.(?:service|timer))\n", text)
        if unit:
            self._try_systemd(unit[1], text.replace("/srv/mysite", str(self.directory)))
        else:
            self._try_pgbouncer(text)

    def _try_systemd(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)
        parser = ConfigParser(interpolation=None)
        parser.read_string(text)
        for command in parser.get("Service", "ExecStart", fallback="").splitlines():
            self.shell(command)
        # Where there is no systemd, a unit is only read.
        analyze = shutil.which("systemd-analyze") or "true"
        self.shell(f"{analyze} verify {shlex.quote(str(self.directory / name))}")

    def _try_pgbouncer(self, text: str) -> None:
        parser = ConfigParser()
        parser.read_string(text)
        assert parser["pgbouncer"]["pool_mode"] == "transaction"
        assert parser["pgbouncer"].getint("default_pool_size") >= 2

    def _try_sql(self, text: str) -> None:
        self._query(text)

    def _query(self, sql: str) -> Any:
        """Return the first column of the first row that a query gives in the project's database, if any."""
        reader = connection.copy()
        reader.settings_dict["NAME"] = self._database["NAME"]
        try:
            with reader.cursor() as cursor:
                cursor.execute(sql.replace("%", "%%"), [])
                row = cursor.fetchone()
            return row and row[0]
        finally:
            reader.close()

    def _extend_settings(self, text: str) -> None:
        with (self.directory / SETTINGS).open("a") as settings:
            settings.write("\n" + text + "\n")

    def _environment(self) -> dict[str, str]:
        path = f"{self.directory / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        python_path = os.pathsep.join([str(self.directory), str(ROOT)])
        return os.environ | {"PATH": path, "PYTHONPATH": python_path, "DJANGO_SETTINGS_MODULE": "mysite.settings"}


def _path_of(text: str) -> str | None:
    """Return the file that a snippet says it is, in its first line."""
    match = re.match(r"# (\S+\.py)\n", text)
    return match and match[1]


def _read_console(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command behind a `$`, with the lines that it is said to print."""
    command, expected = "", []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line.removeprefix("$ "), []
        elif command.count('"') % 2:
            command += "\n" + line
        else:
            expected.append(line)
    assert command, f"no command in:\n{text}"
    yield command, expected


def _check_installation(command: str) -> None:
    """Fail unless what pip is told to install is this package, with extras that it has."""
    requirement = shlex.split(command)[-1]
    match = re.fullmatch(r"([a-z-]+)(?:\[([a-z0-9,-]+)\])?", requirement)
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert match is not None, f"{requirement} is no requirement"
    assert f'\nname = "{match[1]}"\n' in pyproject
    extras = pyproject.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for extra in (match[2] or "").split(","):
        assert f"\n{extra} = " in extras or not extra, f"there is no extra {extra}"


def _check_target(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"the Makefile has no target {target}"
