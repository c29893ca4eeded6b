"""The documentation site has all pages, its links work, and it loads only local files."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from urllib.parse import unquote

import batchmill.blocks
import pytest
from harness.browser import PATIENCE_SECONDS
from harness.live import clean_environment, made_once
from playwright.sync_api import sync_playwright

import batchmill
from batchmill.cli.main import make_app

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
# The files and folders from which the site is built.
PARTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "prefect.yaml",
    "benchmarks",
    "docs",
    "examples",
    "src",
    "tests",
    ".ci",
)
# The attributes of tags that make a browser load a file.
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


def build(root, folder, home):
    """Build the site of the repository, or of a copy, with the command of a user."""
    return subprocess.run(
        [sys.executable, root / "docs" / "site" / "build.py", folder],
        env=clean_environment(home),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    def make(folder):
        done = build(ROOT, folder / "built", tmp_path_factory.mktemp("home"))
        assert done.returncode == 0, done.stderr

    return made_once("site", make) / "built"


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the site's sources, which a test may change."""
    root = tmp_path / "copy"
    root.mkdir()
    for part in PARTS:
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, root / part)
    return root


def pages_of(root):
    """Return the module that lays out the pages of a copy."""
    spec = spec_from_file_location("pages_of_a_copy", root / "docs" / "site" / "pages.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Page(HTMLParser):
    """The links, loaded files and anchors of a built page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.fetched, self.anchors = [], [], set()
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if "id" in attributes:
            self.anchors.add(attributes["id"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        # A browser does not load these links.
        if attributes.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.fetched.append(attributes.get(FETCHED.get(tag, "")) or "")


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_each_page_is_in_the_site_and_its_navigation(site, pages):
    named = {
        link.partition("#")[0]
        for link in re.findall(r'href="([^"]*)"', pages[site / "index.html"].text)
    }
    places = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    for place in [*places, Path("ARCHITECTURE.md"), Path("CHANGELOG.md")]:
        name = place.with_suffix(".html").as_posix()
        assert (site / name).exists()
        assert {name, f"./{name}"} & named, place


def test_each_command_has_its_entry(site, pages):
    anchors = pages[site / "reference" / "commands.html"].anchors
    commands = [name for name in make_app() if not name.startswith("-")]
    assert len(commands) >= 9
    assert {f"batchmill-{name}" for name in commands} <= anchors


def test_an_entry_has_the_text_of_the_commands_help(site, pages):
    text = pages[site / "reference" / "commands.html"].text
    for option in ("--max-failures", "--memory-limit", "--repair", "--deployment"):
        assert option in text
    # The entry has the whole docstring, and not only its first line.
    assert "Inputs that are already done are not executed again" in text
    assert "[required]" not in text
    assert "batchmill run MANIFEST --step REF" in text
    # As in the help, there is no default without a value, and no `--no-...` or `--empty-...`.
    for other in ("run run", 'Default: "', "Default: ().", "--empty-", "--no-force"):
        assert other not in text


def test_each_public_name_has_its_entry(site, pages):
    page = pages[site / "reference" / "python.html"]
    assert {name.lower() for name in batchmill.__all__} <= page.anchors
    assert "may_be_empty" in page.text
    assert "<code>None</code>: " not in page.text


def test_flows_and_blocks_have_their_entries(site, pages):
    assert {"preprocess", "saved-job", "verify-dataset", "watch-source"} <= pages[
        site / "reference" / "flows.html"
    ].anchors
    assert "<code>inputs.min_age</code>" in pages[site / "reference" / "flows.html"].text
    blocks = pages[site / "reference" / "blocks.html"]
    assert {name.lower() for name in batchmill.blocks.__all__} <= blocks.anchors
    assert "object, secret" in blocks.text


def test_links_of_built_pages_work(site, pages):
    checked = 0
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            if target.is_dir():
                target = target / "index.html"
            assert target.exists(), f"{path}: {link}"
            if anchor and target in pages:
                assert anchor in pages[target].anchors, f"{path}: {link}"
            checked += 1
    assert checked > 1000


def test_a_notebook_has_a_page_with_its_outputs(site, pages):
    text = pages[site / "examples" / "notebooks" / "pictures_and_failures.html"].text
    assert "3 inputs: 1 ok, 2 failed" in text
    assert "data:image/jpeg;base64," in text
    assert "of the picture is I;16" in text


def test_a_linked_file_or_folder_has_a_page(site, pages):
    assert "work_pool" in pages[site / "source" / "prefect.yaml.html"].text
    assert "dockerfile" in pages[site / "source" / "examples" / "kubernetes.html"].anchors


def test_a_folder_of_recordings_can_be_linked_to(copy, tmp_path):
    with (copy / "docs" / "how-to" / "prefect-ui.md").open("a") as page:
        page.write(
            "\nSee [them](../../examples/recordings) "
            "and [how](../../examples/recordings/make.sh).\n"
        )
    pages_of(copy).lay_out(tmp_path / "pages")
    shown = (tmp_path / "pages" / "source" / "examples" / "recordings.md").read_text()
    assert "## vento.wav\n\n" in shown
    assert "bytes, not text." in shown
    assert (
        "](../source/examples/recordings/make.sh.md)"
        in (tmp_path / "pages" / "how-to" / "prefect-ui.md").read_text()
    )


def test_links_named_after_files_get_titles_and_code_is_unchanged(copy, tmp_path):
    (copy / "docs" / "how-to" / "prefect-ui.md").write_text(
        "# UI\n\n[docs/how-to/buckets.md](buckets.md#datasets), "
        "[../../CHANGELOG.md](../../CHANGELOG.md)\n\n"
        "```text\n[docs/how-to/buckets.md](buckets.md)\n```\n"
    )
    pages_of(copy).lay_out(tmp_path / "pages")
    assert (tmp_path / "pages" / "how-to" / "prefect-ui.md").read_text() == (
        "# UI\n\n[Use buckets](buckets.md#datasets), "
        "[Changelog](../CHANGELOG.md)\n\n"
        "```text\n[docs/how-to/buckets.md](buckets.md)\n```\n"
    )


def test_pages_load_no_file_from_other_servers(site, pages):
    for path, page in pages.items():
        for address in page.fetched:
            assert not re.match(r"(https?:)?//", address), f"{path}: {address}"
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert not re.search(r"(url\(|@import)[\"' ]*(https?:)?//", sheet.read_text()), sheet


@pytest.mark.system
def test_search_works_without_a_server(site, tmp_path):
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not installed. Run: sudo make system-packages"
    requested = []
    with sync_playwright() as playwright:
        environment = clean_environment(tmp_path) | {"HOME": str(tmp_path)}
        browser = playwright.chromium.launch(executable_path=chromium, env=environment)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.on("request", lambda request: requested.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.get_by_role("button", name="Search").click()
        page.keyboard.type("quarantined")
        page.get_by_text(re.compile(r"^\d+ results?$")).wait_for()
        found = (
            page.get_by_role("option").or_(page.locator("a")).filter(has_text="Retry failed inputs")
        )
        found.first.wait_for()
        assert page.get_by_role("combobox").input_value() == "quarantined"
        browser.close()
    assert requested
    assert all(address.startswith("file:") for address in requested), requested


def test_a_page_without_navigation_is_rejected(copy, tmp_path):
    (copy / "docs" / "lost.md").write_text("# Lost\n")
    done = build(copy, tmp_path / "built", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("lost.md: the page is not in the navigation. Add it under nav")
    assert not (tmp_path / "built").exists()


def test_a_broken_link_is_rejected(copy, tmp_path):
    with (copy / "docs" / "how-to" / "prefect-ui.md").open("a") as page:
        page.write("\nSee [this](gone.md).\n")
    done = build(copy, tmp_path / "built", tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr
        == "docs/how-to/prefect-ui.md: the target of the link to gone.md does not exist.\n"
    )


@pytest.mark.long  # It builds a whole site.
def test_a_broken_anchor_is_rejected(copy, tmp_path):
    with (copy / "docs" / "how-to" / "prefect-ui.md").open("a") as page:
        page.write("\nSee [this](buckets.md#gone).\n")
    done = build(copy, tmp_path / "built", tmp_path)
    assert done.returncode == 2
    assert "anchor does not exist" in done.stderr
    assert "prefect-ui.md" in done.stderr
    assert "Traceback" not in done.stderr
