"""What the system says of processes that are not this one's children."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process is there, and is not merely waiting to be told of by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
