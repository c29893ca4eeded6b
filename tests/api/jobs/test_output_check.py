"""A run checks that its output can be written."""

import os

import pytest

from batchmill.api.jobs.run_job import check_writable
from batchmill.errors import OptionError


def test_a_new_folder_or_dataset_is_accepted_and_stays_as_it_is(tmp_path):
    check_writable(str(tmp_path / "new" / "dataset"))
    assert os.listdir(tmp_path) == []
    (tmp_path / "dataset" / ".batchmill").mkdir(parents=True)
    check_writable(str(tmp_path / "dataset"))
    assert os.listdir(tmp_path / "dataset" / ".batchmill") == []


def test_a_place_that_only_looks_writable_is_rejected():
    """The permissions of /proc let root write there, but no file can be created."""
    with pytest.raises(OptionError, match=r"--output /proc/new: /proc cannot be written to \("):
        check_writable("/proc/new")


def test_a_url_is_not_tried():
    check_writable("s3://no-such-bucket/dataset")
