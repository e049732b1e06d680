"""What the browser tests do on a machine without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import find_chromium


def test_without_chromium_the_tests_are_skipped_and_in_ci_they_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = "Not found: chromium and chromedriver.*apt-get install chromium chromium-driver"
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=words):
        find_chromium()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=words):
        find_chromium()
