"""Make the pictures of the pages from real runs: `make pictures`.

`--check` names the pictures that are older than the code that they show. docs/pictures/made.json
has a hash of that code for each picture. Pictures of web pages need Chromium.
"""

import argparse
import hashlib
import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
MADE = PICTURES / "made.json"

# The code that each picture shows, as glob patterns.
_TERMINAL = ("src/batchmill/cli/run_console.py", "docs/pictures/measuring.py")
_REPORT = (
    "src/batchmill/datasets/publishing/report/base.html",
    "src/batchmill/datasets/publishing/report/page.html",
    "src/batchmill/datasets/publishing/report/style.css",
)
_FORM = ("flows/preprocess.py", "flows/parameter_schema.py", "src/batchmill/core/options/*.py")
_ARTIFACTS = ("src/batchmill/orchestration/artifacts.py",)
SHOWN = {
    "terminal.svg": _TERMINAL,
    "report.png": _REPORT,
    "report-top.png": _REPORT,
    "ui-form.png": _FORM,
    "ui-run.png": ("flows/preprocess.py",),
    "ui-summary.png": _ARTIFACTS,
    "ui-failures.png": _ARTIFACTS,
}
# The names of the screenshots that tests/system/test_browser.py takes.
_SCREENSHOTS = {
    "form": "ui-form",
    "run": "ui-run",
    "summary": "ui-summary",
    "failures": "ui-failures",
}

_RUN = (
    "batchmill run recordings --step measuring:measure --output measured --timeout 5 "
    "--max-failures 2"
)
_COMMANDS = ("cat measuring.py", _RUN, "cp repaired.wav recordings/broken.wav", _RUN)
_COLUMNS = 100
_FONT, _LINE, _CHARACTER = 14, 20, 8.43
_LONGEST_PAUSE = 1.5


class Line(NamedTuple):
    """A line of the recording, and when it appears, in seconds."""

    text: str
    second: float
    is_command: bool = False


def older_than_the_code() -> list[str]:
    """Return the names of the pictures that were made from other code."""
    made = json.loads(MADE.read_text()) if MADE.exists() else {}
    return [name for name in SHOWN if made.get(name) != digest_of(name)]


def digest_of(name: str) -> str:
    """Return a hash of the code that a picture shows."""
    found = hashlib.sha256()
    for pattern in SHOWN[name]:
        for path in sorted(ROOT.glob(pattern)):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def record(folder: Path) -> list[Line]:
    """Execute the commands in a folder. Return their lines with the times, without long pauses."""
    shutil.copy(PICTURES / "measuring.py", folder)
    (folder / "recordings").mkdir()
    for source in sorted((ROOT / "examples" / "recordings").iterdir()):
        if source.suffix in (".flac", ".mp3", ".ogg", ".wav"):
            shutil.copy(source, folder / "recordings")
    shutil.copy(folder / "recordings" / "vento.wav", folder / "repaired.wav")
    # A damaged file can do the same to a decoder.
    (folder / "recordings" / "broken.wav").write_text("crash")
    (folder / "recordings" / "endless.wav").write_text("hang!")
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": paths, "PREFECT_HOME": str(folder / "home")}
    lines, now = list[Line](), -_LONGEST_PAUSE
    for command in _COMMANDS:
        now += _LONGEST_PAUSE
        lines.append(Line(f"$ {command}", now, is_command=True))
        last = time.monotonic()
        with subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as running:  # fmt: skip
            assert running.stdout
            for line in running.stdout:
                now += min(time.monotonic() - last, _LONGEST_PAUSE)
                last = time.monotonic()
                shown = line.rstrip().replace(str(folder), "/home/you")
                parts = textwrap.wrap(
                    shown, _COLUMNS, subsequent_indent="    ", drop_whitespace=False
                )
                lines += [Line(part, now) for part in parts or [""]]
    return lines


def drawn(lines: list[Line]) -> str:
    """Return the recording as SVG. Each line appears at its time, and then stays."""
    width, height = round(_COLUMNS * _CHARACTER) + 40, len(lines) * _LINE + 40
    rows = "\n".join(
        f'<text x="20" y="{30 + number * _LINE}" style="animation-delay:{line.second:.2f}s"'
        f' class="{"command" * line.is_command}">{html.escape(line.text)}</text>'
        for number, line in enumerate(lines)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
  width="{width}" height="{height}">
<style>
rect {{ fill: #16191d }}
text {{ fill: #d5dae0; font: {_FONT}px ui-monospace, "DejaVu Sans Mono", Menlo, monospace;
  white-space: pre; animation: appear .01s backwards }}
.command {{ fill: #7fd7a4; font-weight: bold }}
@keyframes appear {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none }} }}
</style>
<rect width="{width}" height="{height}" rx="8"/>
{rows}
</svg>
"""


def make_terminal() -> None:
    """Record the commands, and draw them."""
    with tempfile.TemporaryDirectory() as folder:
        (PICTURES / "terminal.svg").write_text(drawn(record(Path(folder))))


def make_report() -> None:
    """Run the step over the flowers, and photograph the report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(PICTURES / "flowers.py", folder)
        environment = os.environ | {"PREFECT_HOME": str(folder / "home")}
        subprocess.run([sys.executable, "flowers.py", "flowers"], cwd=folder, check=True)
        command = [
            sys.executable,
            "-m",
            "batchmill",
            "run",
            "flowers",
            "--pattern",
            "*.jpg",
            "-o",
            "thumbnails",
        ]
        command += ["--step", "flowers:thumbnails", "--param", "side=128", "--max-failures", "6"]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        page = folder / "thumbnails" / "report.html"
        shown = page.read_text().replace("<wbr>", "").replace(str(folder), "/data")
        page.write_text(shown)
        _photograph(page)


def _photograph(page: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        tab = browser.new_page(viewport={"width": 1100, "height": 1150})
        tab.goto(page.as_uri())
        tab.screenshot(path=PICTURES / "report-top.png")
        tab.screenshot(path=PICTURES / "report.png", full_page=True)
        browser.close()


def make_ui() -> None:
    """Run the browser test of Prefect's UI, and copy its screenshots."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"BATCHMILL_SCREENSHOTS": folder}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "system",
            "tests/system/test_browser.py",
        ]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        for taken, name in _SCREENSHOTS.items():
            shutil.copyfile(Path(folder) / f"{taken}.png", PICTURES / f"{name}.png")


def main() -> None:
    """Make the pictures that are older than the code, or all, or name the older ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only name the older pictures")
    parser.add_argument("--all", action="store_true", help="make all pictures")
    options = parser.parse_args()
    older = older_than_the_code()
    if options.check:
        for name in older:
            print(f"{name}: older than the code that it shows. Run: make pictures")
        sys.exit(bool(older))
    wanted = list(SHOWN) if options.all else older
    for begins, make in {"terminal": make_terminal, "report": make_report, "ui": make_ui}.items():
        made = [name for name in wanted if name.startswith(begins)]
        if made:
            make()
            digests = json.loads(MADE.read_text()) if MADE.exists() else {}
            digests |= {name: digest_of(name) for name in SHOWN if name.startswith(begins)}
            MADE.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")
            print(f"made: {', '.join(made)}")


if __name__ == "__main__":
    main()
