"""A cron job in Django that runs on many replicas and happens once.

Importing this package imports no model, so that it may be imported while the apps are being loaded.
"""

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
