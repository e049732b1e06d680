"""The admin's pages in a browser, in both themes.

With `PICTURES=docs/images` in the environment it leaves the README's pictures there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from .history import make_history

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

LIST = "/admin/django_singlecron/jobrun/"

# https://www.w3.org/TR/WCAG21/#contrast-minimum
READABLE = 4.5

COLOURS = """
const seen = (element, property) => {
    while (element) {
        const colour = getComputedStyle(element)[property];
        if (colour !== 'rgba(0, 0, 0, 0)') return colour;
        element = element.parentElement;
    }
    return 'rgb(255, 255, 255)';
};
return [...document.querySelectorAll(arguments[0])].map(
    element => [element.textContent, getComputedStyle(element).color, seen(element, 'backgroundColor')]);
"""


def luminance(colour: str) -> float:
    """The relative luminance of a CSS colour, by https://www.w3.org/TR/WCAG21/#dfn-relative-luminance"""
    channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def assert_readable(browser: Chrome, selector: str) -> list[tuple[str, str]]:
    """Return the text and background of the elements, each of which can be read."""
    found = browser.execute_script(COLOURS, selector)
    assert found
    for text, foreground, background in found:
        assert contrast(foreground, background) >= READABLE, (text, foreground, background)
    return [(text, background) for text, _, background in found]


def prefer(browser: Chrome, theme: str) -> None:
    """Prefer a theme, as the visitor's system would say to the browser."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def background(browser: Chrome) -> float:
    return luminance(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


def take_picture(browser: Chrome, path: Path, most: int) -> None:
    """Take a picture of the page, at most so many pixels high."""
    content = "return Math.ceil(document.querySelector('#content').getBoundingClientRect().bottom)"
    for height in (most, min(browser.execute_script(content), most)):
        size = {"width": 1400, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert browser.save_screenshot(str(path))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go: where the environment says, or to where they are forgotten."""
    return Path(os.environ.get("PICTURES", tmp_path))


@pytest.fixture
def logged_in(open_browser: Callable[[], Chrome], live_server: LiveServer, settings: Any) -> Chrome:
    User.objects.create_superuser("admin", password="admin")
    browser = open_browser()
    browser.get(f"{live_server.url}/admin/")
    browser.find_element("name", "username").send_keys("admin")
    browser.find_element("name", "password").send_keys("admin")
    browser.find_element("css selector", "[type=submit]").click()
    assert browser.find_element("id", "user-tools")
    # The sidebar of all models folded up, as it is kept by those who look at one of them.
    browser.execute_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    return browser


@pytest.mark.django_db(transaction=True)
def test_list_and_page_of_a_run_can_be_read_in_both_themes(
    logged_in: Chrome, live_server: LiveServer, pictures: Path
) -> None:
    runs = make_history()
    browser = logged_in
    backgrounds = {}
    for theme, suffix in (("light", ""), ("dark", "-dark")):
        prefer(browser, theme)

        browser.get(f"{live_server.url}{LIST}")
        assert (background(browser) > 0.5) is (theme == "light")
        badges = dict(assert_readable(browser, ".singlecron-badge"))
        assert set(badges) == {"acquired", "skipped", "running", "succeeded", "failed", "lost"}
        assert_readable(browser, ".singlecron-note")
        # Good, busy, bad, lost and quiet: each a colour of its own.
        assert len(set(badges.values())) == 5
        backgrounds[theme] = badges
        assert_readable(browser, "#result_list td, #result_list th a")
        take_picture(browser, pictures / f"admin-list{suffix}.png", 1010)

        link = f"{LIST}{runs['failed'].pk}/change/"
        browser.find_element("css selector", f"th a[href^='{link}']").click()
        assert (
            "ValueError: Tenant <Umbrella & Sons> has no monthly fee"
            in browser.find_element("css selector", ".field-traceback_text pre").text
        )
        assert_readable(browser, ".singlecron-badge, .singlecron-text, .readonly a")
        take_picture(browser, pictures / f"admin-run{suffix}.png", 1700)
    assert not set(backgrounds["light"].values()) & set(backgrounds["dark"].values())


@pytest.mark.django_db(transaction=True)
def test_the_visitors_choice_of_a_theme_beats_the_systems(logged_in: Chrome, live_server: LiveServer) -> None:
    make_history()
    browser = logged_in
    browser.get(f"{live_server.url}{LIST}")
    seen = {}
    for system in ("light", "dark"):
        prefer(browser, system)
        for choice in ("light", "dark", "auto"):
            browser.execute_script("document.documentElement.dataset.theme = arguments[0]", choice)
            seen[system, choice] = assert_readable(browser, ".singlecron-badge")
            assert (background(browser) > 0.5) is ("light" in (choice, system) and choice != "dark")
    assert seen["light", "light"] == seen["dark", "light"] == seen["light", "auto"]
    assert seen["light", "dark"] == seen["dark", "dark"] == seen["dark", "auto"]
    assert seen["light", "light"] != seen["dark", "dark"]


@pytest.mark.django_db(transaction=True)
def test_the_links_between_runs_lead_there(logged_in: Chrome, live_server: LiveServer) -> None:
    running = make_history()["running"]
    browser = logged_in
    browser.get(f"{live_server.url}{LIST}?status=skipped")
    browser.find_element("css selector", ".field-held_by_link a").click()
    assert browser.current_url == f"{live_server.url}{LIST}{running.pk}/change/"
    browser.find_element("css selector", ".field-held_up a").click()
    assert "skipped" in browser.find_element("css selector", ".field-status_badge").text
    browser.find_element("css selector", ".field-job_link a").click()
    assert browser.current_url.startswith(f"{live_server.url}{LIST}?job=testproject.billing.cron.send_reminders")
    assert {cell.text for cell in browser.find_elements("css selector", "td.field-job_name")} == {running.job}
