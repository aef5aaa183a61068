"""A headless Chromium, and an application whose user interface it looks at."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from cec_it.cluster import AGENT, EXECUTOR, command_of
from cec_it.local import child_running
from testbed.processes import ProcessTree

HERE = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT = 1600, 1000


def why_no_browser() -> str | None:
    """What is missing on this machine; None if a browser can run."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(missing)} is not installed (Debian: chromium, chromium-driver)" if missing else None


@contextmanager
def browser(*, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """A headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    # Bootstrap scrolls smoothly, unless the user wants less motion, and a click would come too early.
    still = "--force-prefers-reduced-motion"
    size = f"--window-size={WIDTH},{HEIGHT}"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", still, size):
        options.add_argument(argument)
    if dark:
        options.add_argument("--force-dark-mode")  # pages see that the user prefers it
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        driver.set_page_load_timeout(60)
        yield driver
    finally:
        driver.quit()


def complaints(driver: webdriver.Chrome) -> list[str]:
    """What the browser says of the pages since the last call: errors of scripts, and refused resources."""
    logged = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [str(entry["message"]) for entry in logged if entry["level"] == "SEVERE"]


def heading_of(driver: webdriver.Chrome) -> str:
    """The heading that a reader sees; Spark's pages have a hidden one, too."""
    return next(text for each in driver.find_elements(By.TAG_NAME, "h3") if (text := each.text))


def rows_of(driver: webdriver.Chrome, table: str) -> list[list[str]]:
    """The texts of a table's rows, as they are sorted now."""
    cells = "Array.from(row.cells, cell => cell.innerText.trim())"
    script = f"return Array.from(document.querySelectorAll(arguments[0]), row => {cells})"
    rows: list[list[str]] = driver.execute_script(script, f"#{table} tbody tr")  # type: ignore[no-untyped-call]
    return rows


def heads_of(driver: webdriver.Chrome, table: str) -> list[WebElement]:
    """The heads of a table's columns."""
    return driver.find_elements(By.CSS_SELECTOR, f"#{table} thead th")


class Application:
    """`cec_it.ui_job` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], stdin: IO[str], stdout: IO[str], log: Path) -> None:
        self._process, self._stdin, self._stdout, self._log = process, stdin, stdout, log
        self.url = ""
        self.runs: dict[str, str] = {}

    def do(self, word: str, *arguments: str) -> None:
        """Lets the application do what a word says, and waits until it is done."""
        self._stdin.write(f"{' '.join([word, *arguments])}\n")
        self._stdin.flush()
        line = self._stdout.readline()
        assert line, f"{word}: {self._log.read_text()[-4000:]}"
        told = json.loads(line)
        self.url, self.runs = told["url"], told["runs"]

    def read(self, page: str) -> Any:
        """The JSON of a page."""
        with urlopen(f"{self.url}{page}", timeout=30) as answer:
            return json.loads(answer.read())

    def executors_agents(self) -> list[int]:
        """The process ids of the agents of the executors; the driver has one of its own."""
        executors = [pid for pid in ProcessTree(self._process.pid).members() if EXECUTOR in command_of(pid)]
        return [agent for agent in (child_running(each, AGENT) for each in executors) if agent is not None]

    def query(self, name: str) -> dict[str, Any]:
        """What the overview's JSON says of a query."""
        found: dict[str, Any] = next(each for each in self.read("/cec/json")["queries"] if each["name"] == name)
        return found


@contextmanager
def application(root: Path, conf: dict[str, str] | None = None) -> Iterator[Application]:
    """The application, below a directory; `conf`: further settings of its session."""
    root.mkdir(parents=True, exist_ok=True)
    log = root / "stderr.log"
    path = os.pathsep.join(str(each) for each in (HERE.parent / "python", HERE, HERE.parent / "support"))
    env = {**os.environ, "PYTHONPATH": path, "CEC_UI_CONF": json.dumps(conf or {}), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "cec_it.ui_job", str(root)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Application(process, process.stdin, process.stdout, log)
        finally:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
