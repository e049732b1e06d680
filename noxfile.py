"""The tests on each Django and Python that the package supports: `nox -s tests`, or `nox --list` and one of them."""

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["lint", "tests"]
nox.options.default_venv_backend = "virtualenv"

PYTHONS = {
    "5.2": ("3.10", "3.11", "3.12", "3.13"),
    "6.0": ("3.12", "3.13"),
    "6.1": ("3.12", "3.13"),
}
MATRIX = [(python, django, "psycopg") for django, pythons in PYTHONS.items() for python in pythons]
# Django takes psycopg 3 where both are installed, so the other driver has a session of its own.
MATRIX.append(("3.10", "5.2", "psycopg2"))


@nox.session
@nox.parametrize("python,django,driver", MATRIX, ids=[f"py{p}-django{d}-{driver}" for p, d, driver in MATRIX])
def tests(session: nox.Session, django: str, driver: str) -> None:
    """Run the tests; arguments after `--` are pytest's."""
    pyproject = nox.project.load_toml("pyproject.toml")
    groups = nox.project.dependency_groups(pyproject, "test", driver)
    session.install("--editable", ".", f"django=={django}.*", *groups)
    session.run("python", "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Do what `make lint` does, which has an environment of its own."""
    session.run("make", "lint", external=True)
