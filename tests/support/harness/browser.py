"""Drive Prefect's UI in a real browser: Debian's Chromium, through playwright."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from harness.live import ask, clean_environment

PATIENCE_SECONDS = 240
_SUBMITS = 10
_SAME_SHOTS = 8
# Some pages change all the time.
_MOST_SHOTS = 80


class Ui:
    """The v2 UI of a Prefect server, in one tab."""

    def __init__(self, page, url, folder):
        self.page = page
        self._url = url
        self._folder = folder

    def open(self, path):
        self.page.goto(f"{self._url}/v2{path}")

    def shoot(self, name, *, whole=False):
        """Save a screenshot of the visible part of the tab; with `whole`, of the whole page.

        Graphs are drawn in steps, so several pictures in a row must be the same.
        """
        shots = [b""]
        while len({*shots[-_SAME_SHOTS:]}) > 1 or len(shots) < _SAME_SHOTS:
            shots.append(self.page.screenshot(full_page=whole))
            if len(shots) > _MOST_SHOTS:
                break
        (self._folder / f"{name}.png").write_bytes(shots[-1])

    def open_form(self, deployment):
        """Open the form of a deployment's custom run."""
        made = ask(f"{self._url}/api", f"/deployments/name/{deployment}")
        self.open(f"/deployments/deployment/{made['id']}/run")
        self.page.get_by_role("heading", name="Parameters").wait_for()
        # Each field has such a button, so the fields are complete.
        self.page.get_by_role("main").get_by_role("button", name="Open menu").first.wait_for()

    def labels(self):
        """Return the labels of the fields, in order."""
        return self.page.get_by_role("main").locator("label").all_inner_texts()

    def field(self, label):
        """Return a field with its label and description."""
        return self.page.locator("label").get_by_text(label, exact=True).locator("xpath=../../..")

    def write_json(self, label, value):
        self.field(label).locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(json.dumps(value))

    def submit(self):
        self.page.get_by_role("button", name="Submit").click()

    def start_run(self):
        """Submit the form and open the page of the new run; return the run's id.

        If SQLite is locked, the server answers 503 and the form remains. Then submit it again.
        """
        for _ in range(_SUBMITS):
            with self.page.expect_response("**/create_flow_run") as response:
                self.submit()
            if response.value.status != 503:
                break
        # The message with the link may have disappeared already on a slow machine.
        run = response.value.json()["id"]
        self.open(f"/runs/flow-run/{run}")
        # The tab shows the previous page, with the states of other runs, until this tab exists.
        self.page.get_by_role("tab", name="Artifacts").wait_for()
        return run

    def wait_for_state(self, state):
        """Wait until the run's page shows this final state."""
        badge = self.page.get_by_role("main").get_by_text(state, exact=True).first
        badge.wait_for(timeout=PATIENCE_SECONDS * 1000)
        # The pictures must not show the message that a run was started.
        self.page.reload()
        badge.wait_for()

    def open_artifact(self, kind):
        """Open an artifact from the run's page: progress, failures or summary."""
        self.page.get_by_role("tab", name="Artifacts").click()
        self.page.get_by_role("main").get_by_role("link").filter(has_text=f"{kind}-").click()


@contextmanager
def browser_in(folder):
    """Yield a browser whose home is in the folder."""
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not installed. Run: sudo make system-packages"
    home = folder / "browser-home"
    home.mkdir()
    with sync_playwright() as playwright:
        environment = clean_environment(home) | {"HOME": str(home)}
        browser = playwright.chromium.launch(executable_path=chromium, env=environment)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def ui_of(api_url, folder):
    """Yield the UI of a Prefect server.

    Screenshots are saved in $BATCHMILL_SCREENSHOTS, or in the folder if it is not set.
    """
    pictures = Path(os.environ.get("BATCHMILL_SCREENSHOTS") or folder / "screenshots")
    pictures.mkdir(parents=True, exist_ok=True)
    url = api_url.removesuffix("/api")
    with browser_in(folder) as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900}, locale="en-GB")
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        # Block the UI's requests to other servers.
        page.route(
            lambda address: not address.startswith((url, "data:", "blob:")),
            lambda route: route.abort(),
        )
        # If the test fails, pytest shows these lines.
        page.on("response", lambda one: one.ok or print(one.status, one.request.method, one.url))
        page.on("pageerror", lambda error: print("error in the page:", error))
        try:
            yield Ui(page, url, pictures)
        finally:
            page.screenshot(path=folder / "last.png", full_page=True)
            print(f"At the end, the page {page.url} had this text:", page.inner_text("body"))
