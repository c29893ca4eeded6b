"""The keys of artifacts, which Prefect shows as titles."""

from batchmill.orchestration.display.run_reporter import artifact_key


def test_a_key_is_readable_and_differs_between_datasets_of_one_name():
    one, other = (artifact_key("summary", f"/data/{folder}/Clips") for folder in "ab")
    assert one.startswith("summary-clips-")
    assert len(one) == len("summary-clips-") + 4
    assert one != other
