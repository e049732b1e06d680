"""An undecorated command that does what its arguments say."""

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = "Does what its arguments say."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["tell", "echo", "exit", "fail", "raise", "return"])
        parser.add_argument("words", nargs="*")
        # Of the same names as the options of `singlecron run`.
        parser.add_argument("--name")
        parser.add_argument("--skip-exit-code", type=int)

    def handle(self, *args: Any, action: str, words: list[str], **options: Any) -> str | None:
        return getattr(self, f"do_{action}")(*words, **options)

    def do_tell(self, *words: str, **options: Any) -> None:
        self.stderr.write("to stderr")
        told = ("name", "skip_exit_code", "verbosity", "no_color", "traceback", "settings")
        self.stdout.write(json.dumps({"words": words, **{name: options[name] for name in told}}))

    def do_echo(self, **options: Any) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(sys.stdin.buffer.read())

    def do_exit(self, code: str, **options: Any) -> None:
        sys.exit(int(code))

    def do_fail(self, code: str, **options: Any) -> None:
        raise CommandError("failed as told", returncode=int(code))

    def do_raise(self, **options: Any) -> None:
        raise ZeroDivisionError("raised as told")

    def do_return(self, text: str, **options: Any) -> str:
        return text
