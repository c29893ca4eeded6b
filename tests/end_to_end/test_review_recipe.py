"""The workflow of docs/how-to/review.md, over a dataset in a bucket."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from harness.object_store import upload
from harness.s3_proxy import s3_proxy

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "review.md"
STEP = """
def step(source):
    return {"letters": len(source.read_text())}
"""
# It records its arguments instead of sending a comment.
GH = """#!/bin/sh
echo "$@" > gh.txt
"""


@pytest.fixture
def checkout(shell, bucket, s3, work):
    """A clone of a repository with a step, whose dataset is in the bucket. Yields its folder."""
    (work / "in").mkdir()
    for word in ("one", "three", "fifteen"):
        (work / "in" / f"{word}.txt").write_text(word)
    upload(work / "in", f"{bucket}/in")
    folder = work / "checkout"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "gh").write_text(GH)
    (folder / "bin" / "gh").chmod(0o755)
    # The run that makes the dataset uses another clone.
    made = work / "made"
    for place in (folder, made):
        (place / "steps").mkdir(parents=True)
        (place / "steps" / "letters.py").write_text(STEP)
    shell.environment |= s3 | {"PYTHONPATH": str(made)}
    done = shell.batchmill(
        "run", f"{bucket}/in", "--step", "steps.letters:step", "-o", f"{bucket}/clips"
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_workflow_comments_a_pull_request(checkout, shell, bucket, s3):
    """The commands run as in GitHub, with a key that can only read. A stand-in records `gh`."""
    workflow = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])
    job = workflow["jobs"]["review"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert len(commands) == 3
    step = checkout / "steps" / "letters.py"
    step.write_text(STEP.replace("len(source", "2 * len(source"))
    with s3_proxy(s3["AWS_ENDPOINT_URL"]) as proxy:
        environment = shell.environment | {"AWS_ENDPOINT_URL": proxy.url}
        environment |= {name: value for name, value in job["env"].items() if "$" not in value}
        environment |= {"DATASET": f"{bucket}/clips", "PULL_REQUEST": "7"}
        programs = f"{checkout / 'bin'}:{Path(sys.executable).parent}"
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        for command in commands[1:]:  # The first one installs batchmill.
            subprocess.run(["bash", "-e", "-c", command], cwd=checkout, env=environment, check=True)
    assert {request.method for request in proxy.requests} <= {"GET", "HEAD"}
    sent = (checkout / "gh.txt").read_text()
    assert sent == "pr comment 7 --body-file review.md --edit-last --create-if-none\n"
    text = (checkout / "review.md").read_text()
    assert "**3 of 3 results differ.**" in text
    assert "- `letters: 5 (3 to 7) -> 10 (6 to 14)`" in text
    page = checkout / job["steps"][-1]["with"]["path"]
    assert "3 of 3 results differ." in page.read_text()
