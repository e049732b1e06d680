"""Signals of a run's life, sent to receivers whose errors are logged and go no further.

The sender is `JobRun`. Each carries `job`, the job's name; `run_id`, the primary key of its row (None for a skip that
is not recorded); `using`, the database's alias.
"""

from django.dispatch import Signal

run_acquired = Signal()
"""A run has the lock and is about to start; sent in its transaction. Also carries `run`, as from `current_run()`."""

run_skipped = Signal()
"""An attempt did not run. Also carries `skip_reason`, and `held_by`, the id of the run that held the lock or None."""

run_succeeded = Signal()
"""A run's work is committed. Also carries `error`: None, or what an `on_commit` hook raised afterwards."""

run_failed = Signal()
"""A run did not succeed. Also carries `status` (`"failed"` or `"lost"`), and `error`, the exception; None for a run
that was killed and is found out by a later attempt, whose process sends the signal."""
