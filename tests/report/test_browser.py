"""The page in a real browser: headless Chromium, driven through its WebDriver.

``TRITONGEMM_TEST_SCREENSHOTS=FOLDER`` keeps a screenshot of each theme there.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from made_rows import RUN, make_row, write_journal

from tritongemm.config import KernelConfig
from tritongemm.problem import GemmProblem
from tritongemm.records import rows as records
from tritongemm.report import heat, load, page

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="needs a browser: apt install chromium chromium-driver")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--window-size=1320,1500")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Two suites and dtypes, three providers, a failure, more rows than are shown at once."""
    folder = tmp_path_factory.mktemp("report")
    rows = [make_row(8192, status="timeout", error="killed after 30 s")]
    for i in range(45):
        for suite, dtype in (("square", "bf16"), ("llm_decode", "bf16"), ("square", "fp16")):
            for provider, ratio in (("torch", 1.0), ("tritongemm", 1.0 + i / 100),
                                    ("inductor", 0.9)):
                rows.append(make_row(64 * (i + 1), 512, 512, suite=suite, dtype=dtype, ratio=ratio,
                                     provider=provider, config_id="tiled_64x64x32_w4_s2_g8",
                                     max_err_ratio=0.3, throttled="sw_power_cap"))
    records.append_rows(folder / "bench.csv", rows)
    records.write_sidecar(folder, RUN, {"environment": {"torch": "2.13.0"}})
    problem = GemmProblem(512, 512, 512)
    maps = heat.read_maps([write_journal(folder / "sweep.jsonl", [
        (problem, KernelConfig("tiled", m, n, 32), "ok", float(m + n), "coarse")
        for m in (32, 64) for n in (32, 64)])])
    return page.write_page(folder / "report.html", load.load([folder]), maps=maps, mean_of=maps)


@pytest.fixture
def opened(browser, report):
    browser.get(report.as_uri())
    yield browser
    assert browser.get_log("browser") == []  # no error and no warning in the console


def texts(browser, css: str) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", css)


def choose(browser, identity: str, label: str) -> None:
    """Picks an entry of a menu, as a reader does."""
    browser.execute_script(
        "const menu = document.getElementById(arguments[0]);"
        "menu.value = [...menu.options].find(o => o.text === arguments[1]).value;"
        "menu.dispatchEvent(new Event('change'))", identity, label)


def test_it_opens_with_every_chart_drawn(opened):
    assert opened.title == "tritongemm report"
    for chart in ("overview-chart", "size-chart", "roof-chart"):
        assert len(texts(opened, f"#{chart} .mark")) > 20, chart
    assert texts(opened, "#overview-chart text.value") == ["1.213", "0.900", "1.213", "0.900"]
    assert "50%" in "".join(texts(opened, "#heat td"))


def test_the_menus_change_the_charts(opened):
    choose(opened, "view", "nvidia-h200 · fp16 · nt")
    assert len(texts(opened, "#overview-chart text.value")) == 2
    before = len(texts(opened, "#size-chart .mark"))
    choose(opened, "size-suite", "llm_decode")
    assert 0 < len(texts(opened, "#size-chart .mark")) < before


def test_the_filter_keeps_rows_with_all_words(opened):
    assert texts(opened, "#found") == ["406 rows, the first 200 shown"]
    opened.find_element("id", "filter").send_keys("llm_decode inductor")
    assert texts(opened, "#found") == ["45 rows"]
    assert {row for row in texts(opened, "#all tbody td:nth-child(1)")} == {"llm_decode"}
    opened.find_element("id", "filter").send_keys(" nowhere")
    assert texts(opened, "#found") == ["0 rows"] and texts(opened, "#all tbody tr") == []


def test_show_more_shows_more(opened):
    opened.execute_script("document.getElementById('more').click()")
    assert len(texts(opened, "#all tbody tr")) == 406


def test_columns_sort_by_keyboard_and_announce_the_order(opened):
    from selenium.webdriver.common.keys import Keys

    [ratio] = [head for head in opened.find_elements("css selector", "#all th")
               if head.text == "ratio"]
    at = 1 + opened.execute_script("return arguments[0].cellIndex", ratio)
    ratio.find_element("tag name", "button").send_keys(Keys.ENTER)
    assert ratio.get_attribute("aria-sort") == "ascending"
    column = f"#all tbody td:nth-child({at})"
    assert texts(opened, column)[0] == "0.9"
    ratio.find_element("tag name", "button").send_keys(Keys.SPACE)
    assert ratio.get_attribute("aria-sort") == "descending"
    assert texts(opened, column)[:2] == ["1.44", "1.44"]
    opened.execute_script("document.getElementById('more').click()")
    assert texts(opened, column)[-1] == "–"  # what was not measured comes last in both directions


def test_the_summary_sorts_by_keyboard(opened):
    from selenium.webdriver.common.keys import Keys

    [head] = [head for head in opened.find_elements("css selector", "#summary th")
              if head.text == "geomean"]
    at = 1 + opened.execute_script("return arguments[0].cellIndex", head)
    for key, reverse in ((Keys.ENTER, False), (Keys.ENTER, True)):
        head.find_element("tag name", "button").send_keys(key)
        seen = [float(text) for text in texts(opened, f"#summary tbody td:nth-child({at})")]
        assert seen == sorted(seen, reverse=reverse) and len(set(seen)) > 1


def test_a_click_on_a_mark_lists_its_rows(opened):
    from selenium.webdriver.common.action_chains import ActionChains

    mark = opened.find_element("css selector", "#size-chart .mark")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(opened).move_to_element(mark).perform()
    tip = opened.find_element("id", "tip")
    assert tip.is_displayed() and re.search(r"of torch .*\n.* us, .* TFLOP/s", tip.text)
    problem = tip.text.split()[0]
    ActionChains(opened).click(mark).perform()
    assert opened.find_element("id", "filter").get_attribute("value") == problem
    listed = texts(opened, "#all tbody td:nth-child(2)")
    assert problem in listed and all(problem in text for text in listed)


def test_both_themes_are_legible(opened, tmp_path):
    folder = Path(os.environ.get("TRITONGEMM_TEST_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    seen = set()
    for _ in range(2):
        theme = opened.execute_script("return document.documentElement.dataset.theme")
        ink, back = (opened.execute_script(
            f"return getComputedStyle(document.body).{name}") for name in ("color",
                                                                           "backgroundColor"))
        assert abs(brightness(ink) - brightness(back)) > 120
        seen.add(theme)
        assert opened.save_screenshot(str(folder / f"report-{theme}.png"))
        opened.find_element("id", "theme").click()
    assert seen == {"light", "dark"}


def brightness(colour: str) -> float:
    red, green, blue = (int(text) for text in re.findall(r"\d+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue
