"""Tests in a real browser: the fleet page is self-contained, filters, copies, and never executes a
host name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from file_trees import write_file
from node import until

from benchmarks.snapshots import CONFIG, KINDS, node
from hostrouting import Config, judge
from hostrouting.cli.fleet import fleet_page
from hostrouting.fleet.groups import FleetReport
from hostrouting.model.routes import NextHop, Protocol, Route

pytest.importorskip("jinja2", reason="jinja2 isn't installed")
pytest.importorskip("selenium", reason="selenium isn't installed")

from benchmarks.fleet import chromium, write_page

if TYPE_CHECKING:  # each worker collects this file, and the driver takes half a second
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

CONTROL, BACKSPACE, NULL = "\ue009", "\ue003", "\ue000"
EVIL = (
    "</script><img src=x onerror=\"document.title='run'\"><svg "
    "onload=document.title='run'>{{ 7 * 7 }}\x1b[31m\u202e"
)


pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    if shutil.which("chromedriver") is None:
        pytest.fail("chromedriver isn't installed; apt-get install chromium-driver", pytrace=False)
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Chrome, tmp_path: Path) -> Chrome:
    """Return a browser showing a page with ten thousand hosts, split evenly into six groups."""
    browser.get(write_page(tmp_path, 10_000).as_uri())
    return browser


def run(page: Chrome, expression: str) -> Any:
    return page.execute_script(f"return {expression}")


def shown(page: Chrome, selector: str) -> list[str]:
    """Return the text of the matching elements that aren't hidden."""
    every = f"[...document.querySelectorAll({json.dumps(selector)})]"
    texts: list[str] = run(
        page, f"{every}.filter(each => each.checkVisibility()).map(each => each.textContent.trim())"
    )
    return texts


def element(page: Chrome, selector: str) -> WebElement:
    return page.find_element("css selector", selector)


def test_it_shows_groups_and_failing_hosts(page: Chrome) -> None:
    assert page.title == "10,000 snapshots: 1,667 ok, 5,001 overlap, 3,332 unknown"
    titles = shown(page, "h2")
    assert titles[:4] == [
        "1,667 ok",
        "1,667 OVERLAP 172.16.0.0/16 by ib0,ib1,ib2,ib3,ib4,ib5,ib6,ib7, expected eth0",
        "1,667 BLACKHOLE 10.96.0.0/12",
        "1,667 OVERLAP 10.96.0.0/12 by ib7, expected eth0",
    ]
    assert [title.split(":")[1] for title in titles[4:]] == [" no-default-route", " no-snapshot"]
    assert len(shown(page, "li")) == 10_000 - 1667
    element(page, "section.ok summary").click()
    assert len(shown(page, "li")) == 10_000


def test_each_failing_group_has_a_bar(page: Chrome) -> None:
    pictures = run(page, "[...document.images].map(each => each.complete && each.naturalWidth > 0)")
    assert pictures == [True] * 3
    (rules,) = (text for text in shown(page, "section pre") if "priority" in text)
    assert rules == '{"to": "10.100.0.0/16", "priority": 99}'


def test_it_loads_no_other_resource(page: Chrome) -> None:
    loaded = run(page, "performance.getEntriesByType('resource').map(each => each.name)")
    assert all(name.startswith("data:") for name in loaded)
    assert (
        run(page, "fetch('https://example.org').then(() => 'reached', () => 'refused')")
        == "refused"
    )


def test_a_filter_keeps_matching_hosts_and_their_groups(page: Chrome) -> None:
    element(page, "#filter").send_keys("H200-0000")
    assert shown(page, "li") == [
        f"aks-h200-0000{number}" for number in (0, 6, 1, 7, 2, 8, 3, 9, 4, 5)
    ]
    assert shown(page, ".count") == ["2", "2", "2", "2", "1", "1"]
    element(page, "#filter").send_keys("7")
    assert shown(page, "li") == ["aks-h200-00007"]
    assert shown(page, "h2") == [
        "1 OVERLAP 172.16.0.0/16 by ib0,ib1,ib2,ib3,ib4,ib5,ib6,ib7, expected eth0"
    ]
    element(page, "#filter").send_keys(CONTROL, "a", NULL, BACKSPACE)
    assert len(shown(page, "li")) == 10_000


def test_no_group_covers_the_filter(page: Chrome) -> None:
    page.execute_script("scrollTo(0, document.body.scrollHeight / 2)")
    box = "document.querySelector('#filter').getBoundingClientRect()"
    found = run(page, f"document.elementFromPoint({box}.left + 9, {box}.top + 9).id")
    assert found == "filter"


@pytest.mark.parametrize("width", [420, 1280])
def test_long_remarks_cover_no_group(browser: Chrome, tmp_path: Path, width: int) -> None:
    """The remarks scroll away, and list some hosts only, as the text does."""
    (group,) = judge([KINDS["fixed"](node(0))], Config.from_mapping(CONFIG)).groups
    hosts = tuple(f"gpu-{number:04}" for number in range(1000))
    report = FleetReport((attrs.evolve(group, hosts=hosts),), outdated=hosts, gone=hosts)
    browser.get(write_file(tmp_path / "fleet.html", fleet_page(report)).as_uri())
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert run(browser, "document.querySelector('section').offsetTop") < 800
        assert run(browser, "document.body.scrollWidth") <= width
        element(browser, "summary").click()
        browser.execute_script("scrollTo(0, document.body.scrollHeight)")
        header = run(browser, "document.querySelector('header').getBoundingClientRect().bottom")
        assert 0 < header < 100
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(fleet_page(report, is_verbose=True)) > len(fleet_page(report)) + 19_000


def test_the_fix_is_copied_as_a_config_needs_it(page: Chrome) -> None:
    element(page, "section:nth-of-type(3) button").click()
    element(page, "#filter").send_keys(CONTROL, "v")
    text = run(page, "document.querySelector('#filter').value")
    assert json.loads(f"[{text}]") == [
        {"destination": "10.96.0.0/13"},
        {"destination": "10.104.0.0/13"},
    ]


@pytest.fixture
def broken(browser: Chrome, tmp_path: Path) -> Chrome:
    """Return a browser showing a node whose file has another name, and three broken files."""
    for name, text in {"gpu-1": "", "gpu-2": "[", "gpu-3": ""}.items():
        write_file(tmp_path / f"{name}.json", text)
    KINDS["fixed"](node(0)).save(tmp_path / "gpu-0.json")
    report = judge(sorted(tmp_path.iterdir()), Config.from_mapping(CONFIG))
    browser.get(write_file(tmp_path / "fleet.html", fleet_page(report)).as_uri())
    return browser


def test_each_broken_file_is_below_its_reason(broken: Chrome) -> None:
    """Chrome lays a section out, and has its text, only when it draws the page."""
    texts = "[...document.querySelectorAll('div')].map(each => each.innerText)"
    until(lambda: any(run(broken, texts)))
    lists = run(broken, texts)
    fine, *reasons = [" ".join(text.split()) for text in lists]
    assert fine == ""  # closed
    assert [(text[:24], text[-11:]) for text in reasons] == [
        ("no-snapshot: is empty (a", "gpu-1 gpu-3"),
        ("no-snapshot: is not JSON", "early gpu-2"),
    ]
    element(broken, "#filter").send_keys("gpu-2")
    assert len(shown(broken, "div")) == 1


def test_a_host_is_found_by_either_name(broken: Chrome) -> None:
    element(broken, "#filter").send_keys("aks-h200-00000")
    assert shown(broken, "li") == ["gpu-0 is aks-h200-00000"]


def test_the_shown_names_are_copied_for_ansible(broken: Chrome) -> None:
    for word, names in (("", "gpu-1,gpu-3,gpu-2"), ("gpu-3", "gpu-3")):
        element(broken, "#filter").send_keys(word)
        element(broken, "section.unknown .names").click()
        element(broken, "#filter").clear()
        element(broken, "#filter").send_keys(CONTROL, "v")
        assert run(broken, "document.querySelector('#filter').value") == names
        element(broken, "#filter").clear()


def test_hostile_names_are_shown_as_text(browser: Chrome, tmp_path: Path) -> None:
    dev, fine = "<svg>{{7*7}}", node(0)  # the kernel limits a name to 15 bytes
    shadow = Route(IPv4Network("10.96.0.0/16"), (NextHop(dev),), protocol=Protocol.STATIC)
    document = attrs.evolve(fine, host=EVIL, routes=(*fine.routes, shadow)).to_document()
    missing = tmp_path / f"{EVIL.replace('/', '')}.json"
    named = write_file(tmp_path / "named.json", json.dumps(document))
    report = judge([document, named, missing], Config.from_mapping(CONFIG))
    (tmp_path / "fleet.html").write_text(fleet_page(report), encoding="ascii")
    browser.get((tmp_path / "fleet.html").as_uri())
    shown = EVIL.replace("\x1b", "?").replace("\u202e", "?")
    assert browser.title == "3 snapshots: 0 ok, 2 overlap, 1 unknown"
    assert run(browser, "[...document.querySelectorAll('li')].map(each => each.textContent)") == [
        *(shown, f"named is {shown}", shown.replace("/", ""))
    ]
    shadowed, unread = run(
        browser, "[...document.querySelectorAll('h2')].map(each => each.textContent)"
    )
    assert shadowed == f"2 OVERLAP 10.96.0.0/12 by {dev}, expected eth0"
    assert unread == "1 unknown: no-snapshot: there is no such file"
    assert run(browser, "document.querySelectorAll('script').length") == 1
    assert run(browser, "document.querySelectorAll('img:not([src^=\"data:\"])').length") == 0
