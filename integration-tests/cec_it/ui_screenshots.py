"""Pictures of the tab in Spark's user interface: `python -m cec_it.ui_screenshots DIRECTORY` (`make screenshots`)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from selenium.webdriver.chrome.webdriver import WebDriver

from cec_it.browser import Application, application, browser, why_no_browser
from cec_it.driver import CEC

CONF = {
    "spark.app.name": "shop", f"{CEC}CI": "20ms", f"{CEC}U": "1500", f"{CEC}effort": "0", f"{CEC}Q": "3x",
}  # fmt: skip
WIDTH, MOST_HEIGHT = 1400, 1500


def take(chromium: WebDriver, app: Application, page: str, path: Path) -> None:
    """Takes a picture of a whole page."""
    chromium.set_window_size(WIDTH, 600)
    chromium.get(f"{app.url}{page}")
    hide = "document.querySelectorAll('.scroll-btn-container, footer').forEach(each => each.remove())"
    chromium.execute_script(hide)  # type: ignore[no-untyped-call]
    content = "return document.querySelector('.container-fluid.flex-fill').getBoundingClientRect().bottom"
    height = int(chromium.execute_script(content)) + 150  # type: ignore[no-untyped-call]
    chromium.set_window_size(WIDTH, min(height, MOST_HEIGHT))
    chromium.save_screenshot(str(path))
    print(path)


def main(directory: Path) -> int:
    """Runs an application for some minutes, and takes its pictures. Answers 2 without a browser."""
    missing = why_no_browser()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="shop-") as root, application(Path(root) / "shop", CONF) as app:
        app.do("show")
        with browser() as light, browser(dark=True) as dark:
            take(light, app, "/cec/", directory / "ui-overview.png")
            clicks = app.query("clicks by user")
            take(light, app, f"/cec/query/?id={clicks['id']}", directory / "ui-query.png")
            app.do("pipeline")
            (pipeline,) = app.read("/cec/json")["pipelines"]
            take(dark, app, f"/cec/pipeline/?home={quote(pipeline['home'])}", directory / "ui-pipeline.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
