"""A cron job in Django that runs on many replicas and happens once.

Importing this package imports no model, so that it may be imported while the apps are being loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where the names are. They are imported when they are first asked for: most of a project's processes run no job, and
# would pay for them as they start.
_MODULES = {
    "Run": "context",
    "RunResult": "context",
    "SingletonTask": "task",
    "current_run": "context",
    "singleton_task": "decorators",
}

if TYPE_CHECKING:
    from .context import Run, RunResult, current_run
    from .decorators import singleton_task
    from .exceptions import (
        DatabaseUnavailable,
        ForkedRun,
        HistoryNotMigrated,
        InvalidName,
        InvalidSlot,
        InvalidTask,
        LockLost,
        NotPostgreSQL,
        OuterTransaction,
        PermissionRefused,
        ReadOnlyDatabase,
        RunRefused,
        RunTimedOut,
        SinglecronError,
        TransactionBroken,
    )
    from .task import SingletonTask
else:
    # Not for type checkers, for which it would make any name one of the package's.
    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_MODULES.get(name, 'exceptions')}", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "DatabaseUnavailable",
    "ForkedRun",
    "HistoryNotMigrated",
    "InvalidName",
    "InvalidSlot",
    "InvalidTask",
    "LockLost",
    "NotPostgreSQL",
    "OuterTransaction",
    "PermissionRefused",
    "ReadOnlyDatabase",
    "Run",
    "RunRefused",
    "RunResult",
    "RunTimedOut",
    "SinglecronError",
    "SingletonTask",
    "TransactionBroken",
    "current_run",
    "singleton_task",
]

__version__ = "0.1.0"
