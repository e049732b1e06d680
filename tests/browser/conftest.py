"""A headless Chromium, for the tests that look at pages as a person would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

HOW_TO_GET_IT = "Debian and Ubuntu: apt-get install chromium chromium-driver"

# Without a sandbox, which needs privileges that containers lack; without anything that calls home.
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--window-size=1400,900",
]


@pytest.fixture(scope="session")
def chromium() -> tuple[str, str]:
    """Where Chromium and its driver are."""
    return find_chromium()


def find_chromium() -> tuple[str, str]:
    """Return where Chromium and its driver are. Without them the test is skipped, except in CI, where it fails."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser and driver:
        return browser, driver
    missing = " and ".join(name for name, path in (("chromium", browser), ("chromedriver", driver)) if not path)
    reason = f"Not found: {missing}. {HOW_TO_GET_IT}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def open_browser(chromium: tuple[str, str], tmp_path: Path) -> Iterator[Callable[[], Chrome]]:
    """Start a browser with a profile of its own. It ends with the test."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    started: list[Chrome] = []

    def start() -> Chrome:
        options = ChromeOptions()
        options.binary_location = chromium[0]
        for option in OPTIONS:
            options.add_argument(option)
        options.add_argument(f"--user-data-dir={tmp_path / f'profile-{len(started)}'}")
        browser = Chrome(options=options, service=Service(chromium[1]))
        started.append(browser)
        browser.set_page_load_timeout(30)
        return browser

    yield start
    for browser in started:
        browser.quit()
