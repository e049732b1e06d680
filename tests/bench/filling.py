"""A history of many rows, spread as years of cron jobs leave it."""

from django.db import connections

# 50 jobs on 3 replicas: two of three attempts skipped, of the runs 2 % failed and 0.5 % lost, a minute apart.
_FILL = """
INSERT INTO django_singlecron_jobrun
    (job, key, outcome, skip_reason, status, held_by_id, host, pid, trigger, command, started_at, finished_at, output)
SELECT 'job-' || n / 3 %% 50, hashtextextended('job-' || n / 3 %% 50, 0),
       CASE WHEN n %% 3 = 0 THEN 'acquired' ELSE 'skipped' END,
       CASE WHEN n %% 3 = 0 THEN '' ELSE 'locked' END,
       CASE WHEN n %% 3 <> 0 THEN 'skipped'
            WHEN n / 3 %% 200 = 0 THEN 'lost'
            WHEN n / 3 %% 50 = 1 THEN 'failed'
            ELSE 'succeeded' END,
       CASE WHEN n %% 3 <> 0 THEN n - n %% 3 END,
       'replica-' || n %% 3, n %% 30000, 'command_line', 'manage.py job',
       now() - make_interval(mins => (%s - n) / 3), now() - make_interval(mins => (%s - n) / 3, secs => -5),
       CASE WHEN n %% 3 = 0 THEN repeat('120 invoices written. ', 5) ELSE '' END
FROM generate_series(1, %s) AS n
"""

# 200 jobs with slots on 3 replicas: two of three attempts skipped, of the runs one in seven failed.
_FILL_SLOTS = """
INSERT INTO django_singlecron_jobrun
    (job, key, outcome, skip_reason, status, host, pid, trigger, started_at, finished_at, slot)
SELECT 'job ' || n / 3 %% 200, n / 3 %% 200, CASE WHEN n %% 3 = 0 THEN 'acquired' ELSE 'skipped' END,
       CASE WHEN n %% 3 = 0 THEN '' ELSE 'locked' END,
       CASE WHEN n %% 3 <> 0 THEN 'skipped' WHEN n %% 7 = 0 THEN 'failed' ELSE 'succeeded' END,
       'web-' || n %% 3, 1, 'function', moment, moment, moment
FROM (SELECT n, now() - make_interval(mins => (%s - n) / 3) AS moment FROM generate_series(1, %s) AS n) AS attempt
"""


def fill_history(using: str, rows: int) -> None:
    """Write `rows` attempts into an empty history, and let PostgreSQL take its statistics."""
    with connections[using].cursor() as cursor:
        cursor.execute(_FILL, [rows, rows, rows])
        cursor.execute("VACUUM ANALYZE django_singlecron_jobrun")
        cursor.execute("CHECKPOINT")


def fill_slots(using: str, rows: int) -> None:
    """Write `rows` attempts of 200 jobs, named "job 0" to "job 199", with their slots."""
    with connections[using].cursor() as cursor:
        cursor.execute(_FILL_SLOTS, [rows, rows])
        cursor.execute("VACUUM ANALYZE django_singlecron_jobrun")
