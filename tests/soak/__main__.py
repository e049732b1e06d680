"""`python -m tests.soak --minutes 60 --seed 1`: replicas, jobs and faults, and whether what must hold held.

Ends with a report, and with exit code 1 when something did not. Ctrl-C ends it early, with its report.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import traceback
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2, help="how long, %(default)s by default")
    parser.add_argument("--seed", help="what is drawn follows from it; by default another each time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    options = parser.parse_args()
    seed = options.seed or str(random.randrange(1 << 32))

    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())

    # It has a server of its own; the settings' one is not used.
    os.environ["DATABASE_URL"] = "postgresql:///none"
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django

    django.setup()
    from tests.soak.soak import Soak

    soak = Soak(seed, options.minutes, stopping)
    report = soak.report
    try:
        soak.run()
    except Exception:
        report.violations.append({"what": f"The soak failed: {traceback.format_exc()}"})
    for line in report.lines():
        print(line)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1, default=str) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
