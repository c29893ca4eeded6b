"""Environment variables restrict which steps may run and which places may be used."""

import os
from contextlib import nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from harness.jobs import run_job
from harness.live import serving

from batchmill.core.ledger.open import open_ledger
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.security.allowlist import check_input, refused_inputs, refused_models
from batchmill.core.storage import is_url, remote
from batchmill.errors import ManifestError, OptionError

SPLIT = "batchmill.steps.words:split"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Create an allowed folder, another folder, and a module that leaves a file when imported."""
    for name in ("mine", "theirs", "mine/out"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "a.txt").write_text("simple")
    (tmp_path / "theirs" / "secret.txt").write_text("secret")
    (tmp_path / "custom.py").write_text(
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
        ("batchmill.steps", "custom:step"),
        ("", "custom:step"),
        ("custo, customx, custom.py", "custom:step"),
        ("custom:other", "custom:step"),
        ("custom", "custom:os.system"),
    ],
)
def test_a_step_that_is_not_allowed_is_not_imported(lab, monkeypatch, allowed, step):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", allowed)
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_STEPS"):
        prepare(job(lab, step=step))
    assert not (lab / "imported").exists()
    assert not (lab / "mine" / "out" / ".batchmill").exists()


@pytest.mark.parametrize("name", ["system", "getcwd", "Path"])
def test_an_import_of_an_allowed_module_is_not_an_allowed_step(lab, monkeypatch, name):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", "custom")
    with pytest.raises(OptionError, match="which may not be run here"):
        prepare(job(lab, step=f"custom:{name}"))


@pytest.mark.parametrize("name", ["run", "items"])
def test_an_object_of_unknown_origin_must_be_allowed_by_its_full_name(lab, monkeypatch, name):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", "custom")
    with pytest.raises(OptionError, match="neither a function nor a class"):
        prepare(job(lab, step=f"custom:{name}"))
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", f"custom:{name}")
    assert len(prepare(job(lab, step=f"custom:{name}")).manifest) == 1


@pytest.mark.parametrize("allowed", ["custom", "custom:step", "batchmill.steps , custom:step,"])
def test_a_step_that_is_allowed_runs(lab, monkeypatch, allowed):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", allowed)
    assert run(lab, step="custom:step").outcomes == {"ok": 1}


@pytest.mark.parametrize(
    "manifest", ["theirs", "theirs/*.txt", "mine/../theirs", "mine/*/../../theirs"]
)
def test_a_manifest_outside_the_allowed_places_is_not_read(lab, monkeypatch, manifest):
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", str(lab / "mine"))
    with pytest.raises(ManifestError, match="BATCHMILL_ALLOWED_INPUTS") as caught:
        prepare(job(lab, step="custom:step", manifest=manifest))
    assert "secret.txt" not in str(caught.value)
    assert not (lab / "imported").exists()


def test_inputs_outside_the_allowed_places_are_rejected_with_their_lines(lab, monkeypatch):
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", str(lab / "mine"))
    (lab / "mine" / "link.txt").symlink_to(lab / "theirs" / "secret.txt")
    (lab / "mine" / "list.csv").write_text(f"input\na.txt\n{lab}/theirs/secret.txt\nlink.txt\n")
    with pytest.raises(ManifestError) as caught:
        prepare(job(lab, step="custom:step", manifest="mine/list.csv"))
    assert [fault.partition(":")[0] for fault in caught.value.faults] == ["line 3", "line 4"]
    assert not (lab / "imported").exists()


def test_urls_are_compared_with_the_allowed_places(monkeypatch):
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", "s3://ours/in, https://host/data")
    inside = ["s3://ours/in/a..b.wav", "s3://ours/in", "https://host/data/a"]
    inside.append("s3://ours/in/a key\tof any kind?token=none")
    outside = [
        *["s3://ours/inner/a", "s3://theirs/in/a", "https://host/data/../b", "/data/a"],
        *["https://host/data/.\t./b", "https://host/data/.\r\n./b", "https://host/data/\n../b"],
        *["https://host/data/%2E%2e/b", "https://host.evil/data/a", "http://host/data/a"],
    ]
    assert list(refused_inputs(inside + outside)) == list(range(4, 4 + len(outside)))


@pytest.mark.parametrize(
    ("allowed", "refused", "reason"),
    [
        ({"DATASETS": ""}, [], None),
        ({"INPUTS": "/in , s3://in"}, [1], "INPUTS allows: /in, s3://in)"),
        ({"INPUTS": " ,"}, [0, 1, 2], "INPUTS allows: nothing)"),
        ({"INPUTS": "/in", "MODELS": "s3://in/"}, [0, 1], "MODELS allows: s3://in/)"),
        ({"STEPS": "mylab"}, [0, 1, 2], "MODELS allows: nothing)"),
        ({"STEPS": "", "INPUTS": "/in", "MODELS": "/"}, [2], "MODELS allows: /)"),
    ],
)
def test_a_model_needs_a_permission_if_steps_models_or_inputs_are_restricted(
    monkeypatch, allowed, refused, reason
):
    places = ("/in/a", "/models/a", "s3://in/a")
    for name in ("STEPS", "INPUTS", "DATASETS", "MODELS"):
        monkeypatch.delenv(f"BATCHMILL_ALLOWED_{name}", raising=False)
    for name, value in allowed.items():
        monkeypatch.setenv(f"BATCHMILL_ALLOWED_{name}", value)
    found = refused_models(places)
    assert list(found) == refused
    assert all(repr(places[place]) in text and reason in text for place, text in found.items())
    with pytest.raises(OptionError, match="read") if "INPUTS" in allowed else nullcontext():
        check_input("/models/a")


@pytest.fixture
def leading_away(lab):
    """Serve both folders. /mine/to?URL redirects to URL. Yields the address and the requests."""
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
def test_a_redirect_out_of_the_allowed_places_is_not_followed(lab, leading_away, monkeypatch, away):
    web, asked = leading_away
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", f"{lab}/mine, {web}/mine")
    monkeypatch.setattr("batchmill.core.storage.retries.retry_remote.pauses", ())
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
def test_a_dataset_outside_the_allowed_places_is_neither_created_nor_opened(
    lab, monkeypatch, output
):
    (lab / "mine" / "link").symlink_to(lab / "theirs")
    run(lab, output=output)
    monkeypatch.setenv("BATCHMILL_ALLOWED_DATASETS", f"{lab}/mine")
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_DATASETS"):
        prepare(job(lab, step="custom:step", output=output))
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_DATASETS"):
        open_ledger(str(lab / output))
    assert not (lab / "imported").exists()
    assert run(lab).outcomes == {"ok": 1}


def test_without_the_variables_everything_is_allowed(lab, monkeypatch):
    for name in ("STEPS", "INPUTS", "DATASETS"):
        monkeypatch.delenv(f"BATCHMILL_ALLOWED_{name}", raising=False)
    assert run(lab, step="custom:step").outcomes == {"ok": 1}
    assert os.path.exists(lab / "imported")
