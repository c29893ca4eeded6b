"""What may be run, read and written, where the environment says so."""

import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from jobs import run_job
from live import serving

from batchmill.errors import ManifestError, OptionError
from batchmill.ledger.open import open_ledger
from batchmill.planning.job import make_job, prepare
from batchmill.storage import is_url, remote

SPLIT = "batchmill.steps.words:split"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder that may be used, one that may not, and a step that tells if it is imported."""
    for name in ("mine", "theirs", "mine/out"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "a.txt").write_text("simple")
    (tmp_path / "theirs" / "secret.txt").write_text("secret")
    (tmp_path / "told.py").write_text(
        "from pathlib import Path\nfrom os import system, getcwd\nimport functools, os\n"
        "run = functools.partial(os.system)\nitems = ['a']\n"
        f"Path({str(tmp_path / 'imported')!r}).touch()\n"
        "def step(source, out): return {}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(lab, step=SPLIT, output="mine/out"):
    return run_job(lab / "mine", step, lab / output)


def job(lab, step=SPLIT, manifest="mine", output="mine/out"):
    place = manifest if is_url(manifest) else str(lab / manifest)
    return make_job(manifest=place, step=step, output=str(lab / output))


@pytest.mark.parametrize(
    ("allowed", "step"),
    [
        ("batchmill.steps", "told:step"),
        ("", "told:step"),
        ("tol, toldx, told.py", "told:step"),
        ("told:other", "told:step"),
        ("told", "told:os.system"),
    ],
)
def test_a_step_that_is_not_allowed_is_not_imported(lab, monkeypatch, allowed, step):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", allowed)
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_STEPS"):
        prepare(job(lab, step=step))
    assert not (lab / "imported").exists()
    assert not (lab / "mine" / "out" / ".batchmill").exists()


@pytest.mark.parametrize("name", ["system", "getcwd", "Path"])
def test_what_an_allowed_module_has_imported_is_no_step_of_its(lab, monkeypatch, name):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", "told")
    with pytest.raises(OptionError, match="which is not among what may be run"):
        prepare(job(lab, step=f"told:{name}"))


@pytest.mark.parametrize("name", ["run", "items"])
def test_nobody_knows_where_an_object_was_made(lab, monkeypatch, name):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", "told")
    with pytest.raises(OptionError, match="neither a function nor a class"):
        prepare(job(lab, step=f"told:{name}"))
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", f"told:{name}")
    assert len(prepare(job(lab, step=f"told:{name}")).manifest) == 1


@pytest.mark.parametrize("allowed", ["told", "told:step", "batchmill.steps , told:step,"])
def test_a_step_that_is_allowed_runs(lab, monkeypatch, allowed):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", allowed)
    assert run(lab, step="told:step").outcomes == {"ok": 1}


@pytest.mark.parametrize(
    "manifest", ["theirs", "theirs/*.txt", "mine/../theirs", "mine/*/../../theirs"]
)
def test_a_manifest_from_elsewhere_is_not_read(lab, monkeypatch, manifest):
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", str(lab / "mine"))
    with pytest.raises(ManifestError, match="BATCHMILL_ALLOWED_INPUTS") as told:
        prepare(job(lab, step="told:step", manifest=manifest))
    assert "secret.txt" not in str(told.value)
    assert not (lab / "imported").exists()


def test_inputs_from_elsewhere_are_refused_each_with_its_line(lab, monkeypatch):
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", str(lab / "mine"))
    (lab / "mine" / "link.txt").symlink_to(lab / "theirs" / "secret.txt")
    (lab / "mine" / "list.csv").write_text(f"input\na.txt\n{lab}/theirs/secret.txt\nlink.txt\n")
    with pytest.raises(ManifestError) as told:
        prepare(job(lab, step="told:step", manifest="mine/list.csv"))
    assert [fault.partition(":")[0] for fault in told.value.faults] == ["line 3", "line 4"]
    assert not (lab / "imported").exists()


def test_urls_are_inside_what_is_allowed_or_not(monkeypatch):
    from batchmill.allowlist import refused_inputs

    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", "s3://ours/in, https://host/data")
    inside = ["s3://ours/in/a..b.wav", "s3://ours/in", "https://host/data/a"]
    inside.append("s3://ours/in/a key\tof any kind?token=none")
    outside = [
        *["s3://ours/inner/a", "s3://theirs/in/a", "https://host/data/../b", "/data/a"],
        *["https://host/data/.\t./b", "https://host/data/.\r\n./b", "https://host/data/\n../b"],
        *["https://host/data/%2E%2e/b", "https://host.evil/data/a", "http://host/data/a"],
    ]
    assert list(refused_inputs(inside + outside)) == list(range(4, 4 + len(outside)))


@pytest.fixture
def leading_away(lab):
    """A web server with our folder and theirs, where /mine/to?URL leads to a URL; gives its URL."""
    asked = []

    class Leading(SimpleHTTPRequestHandler):
        def send_head(self):
            asked.append(self.path)
            target = self.path.partition("/mine/to?")[2]
            if not target:
                return super().send_head()
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

    handler = partial(Leading, directory=str(lab))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}", asked


@pytest.mark.parametrize(
    "away",
    [
        *["{web}/theirs/secret.txt", "/theirs/secret.txt", "../theirs/secret.txt"],
        *["http:/theirs/secret.txt", "//127.0.0.1:1/mine/a.txt"],
    ],
)
def test_a_redirect_that_leads_out_is_not_followed(lab, leading_away, monkeypatch, away):
    web, asked = leading_away
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", f"{lab}/mine, {web}/mine")
    monkeypatch.setattr("batchmill.storage.retries.retry_remote.pauses", ())
    out, back = (f"{web}/mine/to?{to.format(web=web)}" for to in (away, "{web}/mine/a.txt"))
    (lab / "mine" / "list.csv").write_text(f"input\n{web}/mine/a.txt\n{back}\n{out}\n")
    summary = run_job(lab / "mine" / "list.csv", SPLIT, lab / "mine" / "out")
    assert summary.outcomes == {"ok": 2, "failed": 1}
    assert "BATCHMILL_ALLOWED_INPUTS" in str(summary.failures)
    with pytest.raises(ManifestError, match="BATCHMILL_ALLOWED_INPUTS"):
        prepare(job(lab, manifest=out))
    assert [path for path in asked if path.startswith("/theirs")] == []
    monkeypatch.delenv("BATCHMILL_ALLOWED_INPUTS")
    if "127.0.0.1:1/" not in away:
        assert remote.read(out) == b"secret"


@pytest.mark.parametrize("output", ["theirs/new", "mine/../theirs/new", "mine/link/new"])
def test_a_dataset_elsewhere_is_neither_made_nor_opened(lab, monkeypatch, output):
    (lab / "mine" / "link").symlink_to(lab / "theirs")
    run(lab, output=output)
    monkeypatch.setenv("BATCHMILL_ALLOWED_DATASETS", f"{lab}/mine")
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_DATASETS"):
        prepare(job(lab, step="told:step", output=output))
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_DATASETS"):
        open_ledger(str(lab / output))
    assert not (lab / "imported").exists()
    assert run(lab).outcomes == {"ok": 1}


def test_without_a_word_everything_is_allowed(lab, monkeypatch):
    for name in ("STEPS", "INPUTS", "DATASETS"):
        monkeypatch.delenv(f"BATCHMILL_ALLOWED_{name}", raising=False)
    assert run(lab, step="told:step").outcomes == {"ok": 1}
    assert os.path.exists(lab / "imported")
