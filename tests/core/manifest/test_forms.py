"""Test manifests as JSON Lines, Parquet, folders, globs, lists and DataFrames."""

import datetime
import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from harness.live import serving

from batchmill import ManifestError, load_manifest
from batchmill.core.manifest.arrow_columns import to_arrow_table
from batchmill.core.manifest.file_stats import MISSING_SIZE
from batchmill.core.manifest.records import MAX_LINE_BYTES, save_manifest
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    for name in ("a.wav", "sub/b.wav", "sub/c.txt", ".hidden/d.wav", "sub/.e.wav"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(b"x")
    return data


def names(manifest) -> list[str]:
    return manifest.inputs["input"].to_pylist()


def test_json_lines(folder):
    path = folder / "m.jsonl"
    path.write_text(
        '{"input": "a.wav", "label": "007", "tags": ["x", "y"]}\n\n{"input": "sub/b.wav"}\n'
    )
    manifest = load_manifest(str(path))
    assert names(manifest) == ["a.wav", "sub/b.wav"]
    assert manifest.manifest_columns["label"].to_pylist() == ["007", None]
    assert manifest.manifest_columns["tags"].to_pylist() == ['["x", "y"]', None]


def test_a_key_of_json_lines_may_appear_after_many_lines(folder):
    count = 20_001  # The lines are converted in parts.
    path = folder / "m.jsonl"
    lines = [f'{{"input": "{number}.wav", "first": {number}}}\n' for number in range(count)]
    path.write_text("\n".join([*lines, '{"last": null, "input": "a.wav", "tags": 2}']))
    manifest = load_manifest(str(path))
    assert names(manifest) == [*(f"{number}.wav" for number in range(count)), "a.wav"]
    assert manifest.manifest_columns.to_pydict() == {
        "first": [*range(count), None],
        "last": [None] * (count + 1),
        "tags": [*[None] * count, 2],
    }
    path.write_text("\n".join([*lines, "{}"]))
    with pytest.raises(ManifestError) as caught:
        load_manifest(str(path))
    [fault] = caught.value.faults
    assert fault.startswith(f"line {2 * count + 1}: no value in column 'input'")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"input": "a.wav"}\n{"input": \n', "line 2: is not JSON"),
        ('{"input": "a.wav"}\n["a.wav"]\n', "line 2: is not a JSON object"),
        ("[1]\n", "line 1: is not a JSON object"),
        ("", "is empty"),
        ('{"input": "a.wav", "x": ' + "[" * 100_000, "line 1: is not JSON"),
        ('{"input": 3}\n', "line 1: 3 in column 'input' is not a path"),
        ('{"input": "a.wav"}\n\n{"x": 1}\n', "line 3: no value in column 'input'"),
        ('{"input": "a.wav", "x": 1, "x": 2}\n', "line 1: the key 'x' occurs more than once"),
        ('\n{"input": "a.wav", "x": {"y": 1, "y": 1}}\n', "line 2: the key 'y' occurs more than"),
    ],
)
def test_faults_of_json_lines_have_their_lines(folder, content, expected):
    path = folder / "m.jsonl"
    path.write_text(content)
    with pytest.raises(ManifestError) as caught:
        load_manifest(str(path))
    assert caught.value.faults[0].startswith(expected)


def test_parquet_keeps_types(folder):
    path = folder / "m.parquet"
    frame = pd.DataFrame(
        {"input": ["a.wav", "sub/b.wav"], "day": pd.to_datetime(["2026-01-01", "2026-01-02"])}
    )
    frame.to_parquet(path)
    manifest = load_manifest(str(path))
    assert names(manifest) == ["a.wav", "sub/b.wav"]
    assert pa.types.is_timestamp(manifest.manifest_columns.schema.field("day").type)


def test_a_file_that_is_not_parquet_is_rejected(folder):
    path = folder / "m.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(ManifestError, match="cannot be read as Parquet"):
        load_manifest(str(path))


def test_a_folder_is_searched_recursively_without_hidden_files(folder):
    assert names(load_manifest(str(folder))) == ["a.wav", "sub/b.wav", "sub/c.txt"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.wav", ["a.wav", "sub/b.wav"]),
        ("sub/*", ["sub/b.wav", "sub/c.txt"]),
        ("a.*, *.txt", ["a.wav", "sub/c.txt"]),
    ],
)
def test_a_pattern_matches_names_and_paths(folder, pattern, expected):
    assert names(load_manifest(str(folder), pattern=pattern)) == expected


def test_a_dataset_inside_the_folder_is_skipped(folder):
    (folder / "out" / ".batchmill").mkdir(parents=True)
    (folder / "out" / "files.wav").write_bytes(b"x")
    assert "out/files.wav" not in names(load_manifest(str(folder)))


def test_a_folder_without_matching_files_is_rejected(folder):
    with pytest.raises(ManifestError, match=r"no file in it matches '\*.mp3'"):
        load_manifest(str(folder), pattern="*.mp3")


def test_a_form_without_lines_names_no_line():
    with pytest.raises(ManifestError) as caught:
        load_manifest(pd.DataFrame({"file": ["a.wav"]}))
    assert "line" not in str(caught.value).lower()


def test_a_glob(folder):
    manifest = load_manifest(f"{folder}/**/*.wav")
    assert names(manifest) == ["a.wav", "sub/b.wav"]
    assert names(load_manifest(f"{folder}/**", pattern="b.*")) == ["sub/b.wav"]
    assert names(load_manifest(f"{folder}/**/**/*.wav")) == ["a.wav", "sub/b.wav"]
    with pytest.raises(ManifestError, match="no file matches it"):
        load_manifest(f"{folder}/*.mp3")


def test_a_glob_follows_no_links_to_folders_and_shows_no_hidden_files(folder):
    (folder / "latest").symlink_to(folder / "sub")
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "sub" / ".hidden.wav").write_text("x")
    assert names(load_manifest(f"{folder}/**/*.wav")) == ["a.wav", "sub/b.wav"]
    assert names(load_manifest(f"{folder}/sub/.h*.wav")) == [".hidden.wav"]
    assert names(load_manifest(f"{folder}/latest/*.wav")) == ["b.wav"]
    (folder / "sub" / ".cache").mkdir()
    for name in ("c.wav", ".d.wav"):
        (folder / "sub" / ".cache" / name).symlink_to("nothing")
    assert names(load_manifest(f"{folder}/s*/.cache/*.wav")) == ["sub/.cache/c.wav"]
    assert names(load_manifest(f"{folder}/s*/.cache/c.wav")) == ["sub/.cache/c.wav"]


def test_a_file_whose_name_looks_like_a_glob_is_a_file(folder):
    path = folder / "m[1].csv"
    path.write_text("input\na.wav\n")
    assert names(load_manifest(str(path))) == ["a.wav"]


@pytest.mark.parametrize("pattern", ["", "/*.wav"])
def test_a_name_that_is_not_utf8_is_escaped(folder, pattern):
    with open(os.fsencode(folder) + b"/caf\xe9.wav", "wb"):
        pass
    manifest = load_manifest(f"{folder}{pattern}")
    found = dict(zip(names(manifest), manifest.inputs["size"].to_pylist(), strict=True))
    assert found.pop("caf\\xe9.wav") == MISSING_SIZE
    assert found["a.wav"] != MISSING_SIZE


@pytest.mark.parametrize("pattern", ["", "/*"])
def test_a_file_whose_name_is_blank_is_an_input(tmp_path, pattern):
    for name in (" ", "\n", "a.wav"):
        (tmp_path / name).write_bytes(b"x")
    manifest = load_manifest(f"{tmp_path}{pattern}")
    assert names(manifest) == ["\n", " ", "a.wav"]
    assert manifest.inputs["size"].to_pylist() == [1, 1, 1]


def test_a_file_with_the_escaped_name_of_another_file_is_rejected(folder):
    for name in (b"/caf\xe9.wav", b"/caf\\xe9.wav"):
        with open(os.fsencode(folder) + name, "wb"):
            pass
    with pytest.raises(ManifestError, match="is already listed"):
        load_manifest(str(folder))


def test_a_list_is_relative_to_the_working_directory(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert names(load_manifest(["sub/b.wav", folder / "a.wav"])) == ["sub/b.wav", "a.wav"]
    with pytest.raises(ManifestError, match=r"row 1: 'a\.wav' is already listed on row 0"):
        load_manifest(["a.wav", "a.wav"])
    with pytest.raises(ManifestError, match="is empty"):
        load_manifest([])


def test_a_table_on_a_web_server_is_read_or_has_the_servers_reason(folder, monkeypatch):
    class Handler(SimpleHTTPRequestHandler):
        def send_head(self):
            return super().send_head() if "busy" not in self.path else self.send_error(503, "Busy")

    monkeypatch.setattr("batchmill.core.storage.retries.retry_remote.pauses", ())
    (folder / "m.csv").write_text(f"input\n{folder}/a.wav\n")
    handler = partial(Handler, directory=str(folder))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        web = f"http://127.0.0.1:{server.server_port}"
        assert names(load_manifest(f"{web}/m.csv")) == [f"{folder}/a.wav"]
        for name, reason in {
            "busy": "503, message='Busy'",
            "x": "no such file",
            "": "list",
        }.items():
            with pytest.raises(ManifestError, match=reason):
                load_manifest(f"{web}/{name}")
    with pytest.raises(ManifestError, match=r"no server responds .* the server's address\.$"):
        load_manifest(f"{web}/m.csv")


def test_a_data_frame_has_paths_as_a_list_has(folder):
    mask = folder / "sub/b.wav"
    frame = pd.DataFrame({"input": [folder / "a.wav"], "mask": [mask]}, index=[5])
    manifest = load_manifest(frame, root=str(folder), file_columns=["mask"])
    assert names(manifest) == ["a.wav"]
    assert manifest.manifest_columns["mask"].to_pylist() == [str(mask)]
    assert isinstance(frame["input"][5], os.PathLike)  # The caller's own table stays as it is.


def test_a_data_frame_keeps_its_other_columns(folder, monkeypatch):
    monkeypatch.chdir(folder)
    frame = pd.DataFrame(
        {"input": ["a.wav", "sub/b.wav"], "mixed": [1, "x"], "tags": [["x"], None]}, index=[5, 6]
    )
    manifest = load_manifest(frame)
    assert manifest.manifest_columns["mixed"].to_pylist() == ["1", "x"]
    assert manifest.manifest_columns["tags"].to_pylist() == ['["x"]', None]
    with pytest.raises(ManifestError, match=r"row 1: no value in column 'input'"):
        load_manifest(pd.DataFrame({"input": ["a.wav", None]}))


@pytest.mark.parametrize("root", [None, "sub"])
def test_a_saved_list_is_the_same_manifest(folder, monkeypatch, root):
    monkeypatch.chdir(folder)
    frame = pd.DataFrame({"file": ["b.wav"] if root else ["a.wav"], "n": [3]})
    before = load_manifest(frame, input_column="file", root=root)
    save_manifest(before, str(folder / "saved.parquet"), "file")
    monkeypatch.chdir(folder.parent)
    after = load_manifest(
        str(folder / "saved.parquet"),
        input_column="file",
        root=None if root is None else folder / root,
    )
    assert after.inputs.equals(before.inputs)
    assert after.manifest_columns.to_pylist() == before.manifest_columns.to_pylist()


def test_columns_without_a_table_type_become_text(folder):
    path = folder / "m.jsonl"
    big = '{"input": "a.wav", "n": 9223372036854775808, "s": "\\ud800", "d": {"a": [1]}}\n'
    path.write_text(big + '{"input": "sub/b.wav", "n": 1}\n')
    rows = load_manifest(str(path)).manifest_columns.to_pylist()
    assert rows[0] == {"n": "9223372036854775808", "s": "?", "d": '{"a": [1]}'}
    assert rows[1] == {"n": "1", "s": None, "d": None}


def test_parquet_columns_without_a_csv_form_become_text(folder):
    path = folder / "m.parquet"
    table = pa.table(
        {
            "input": ["a.wav"],
            "raw": pa.array([b"\xff\x00a"], pa.binary()),
            "view": pa.array(["x"], pa.string_view()),
            "days": pa.array([[20000]], pa.list_(pa.date32())),
        }
    )
    pa.parquet.write_table(table, path)
    (row,) = load_manifest(str(path)).manifest_columns.to_pylist()
    assert row == {"raw": "\\xff\x00a", "view": "x", "days": '["2024-10-04"]'}


def test_a_named_index_becomes_a_column(folder, monkeypatch):
    monkeypatch.chdir(folder)
    frame = pd.DataFrame({"input": ["a.wav"], "speaker": ["x"]})
    frame.set_index("speaker").to_parquet("m.parquet")
    assert load_manifest("m.parquet").manifest_columns["speaker"].to_pylist() == ["x"]
    assert names(load_manifest(frame.set_index("input"))) == ["a.wav"]


def test_duplicate_columns_and_missing_values_are_rejected(folder, monkeypatch):
    monkeypatch.chdir(folder)
    frame = pd.DataFrame([["a.wav", 1, 2]], columns=["input", "x", "x"])
    with pytest.raises(ManifestError, match="duplicate column 'x'"):
        load_manifest(frame)
    with pytest.raises(ManifestError, match="row 1: no value"):
        load_manifest(["a.wav", None])


def test_a_glob_skips_datasets_and_accepts_folders_with_brackets(tmp_path, monkeypatch):
    folder = tmp_path / "data [1]"
    (folder / "out" / ".batchmill").mkdir(parents=True)
    (folder / "out" / "files").mkdir()
    for name in ("a.txt", "out/files/b.txt"):
        (folder / name).write_text("x")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    for manifest in ("**/*.txt", "~/data*/*.txt"):
        job = make_job(manifest=manifest, step="batchmill.steps.words:split", output="new")
        assert [name[-5:] for name in names(prepare(job).manifest)] == ["a.txt"]


def test_special_files_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "m.csv")
    with pytest.raises(ManifestError, match="is not a regular file"):
        load_manifest(str(tmp_path / "m.csv"))
    with pytest.raises(ManifestError, match="has no name"):
        load_manifest("")


@pytest.mark.parametrize("listed", ["http://host/in/.\t./secret", "in/.\n./secret", "in/a\x7f"])
def test_web_urls_with_control_characters_are_rejected(listed):
    with pytest.raises(ManifestError, match=r"row 0: .*control character"):
        load_manifest([listed], root="http://host")
    with pytest.raises(ManifestError, match="control character"):
        load_manifest(f"http://host/{listed}.csv")


def test_a_line_of_json_above_the_size_limit_is_rejected_with_its_number(folder):
    line = '{"input": "a.wav"}'
    path = folder / "m.jsonl"
    path.write_text(f"{line}\n{line:<{MAX_LINE_BYTES + 1}}\n")
    with pytest.raises(ManifestError, match="line 2: has more than 32 MiB"):
        load_manifest(str(path))
    path.write_text(f"{line:<{MAX_LINE_BYTES}}\n")
    assert names(load_manifest(str(path))) == ["a.wav"]


def test_values_of_columns_stay_as_they_are(folder):
    columns = {
        "digit": pd.Series([2, 10], dtype="category"),
        "month": pd.period_range("2024-01", periods=2, freq="M"),
        "meta": [{"x": 1}, {"y": 2.5}],
        "tags": [[1, 2], [0.5, float("nan"), {b"k": None}]],
        "word": pd.Series(["b", "a"], dtype="category"),
    }
    frame = pd.DataFrame({"input": ["a.wav", "sub/b.wav"], **columns})
    found = load_manifest(frame, root=str(folder)).manifest_columns
    assert found.to_pydict() == {
        "digit": [2, 10],
        "month": ["2024-01", "2024-02"],
        "meta": ['{"x": 1}', '{"y": 2.5}'],
        "tags": ["[1, 2]", '[0.5, null, {"k": null}]'],
        "word": ["b", "a"],
    }


def test_a_new_row_changes_no_other_row(folder):
    lines = ['{"input": "a.wav", "meta": {"x": 1}}', '{"input": "sub/b.wav", "meta": {"y": "z"}}']
    (folder / "m.jsonl").write_text(lines[0])
    before = load_manifest(str(folder / "m.jsonl")).manifest_columns["meta"].to_pylist()
    (folder / "m.jsonl").write_text("\n".join(lines))
    after = load_manifest(str(folder / "m.jsonl")).manifest_columns["meta"].to_pylist()
    assert (before, after[:1]) == (['{"x": 1}'], ['{"x": 1}'])


NOON = datetime.datetime(2020, 1, 1, 12)
THERE = NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([NOON.date(), NOON, None], ["2020-01-01", "2020-01-01 12:00:00", None]),
        ([NOON.date(), NOON, pd.NaT], ["2020-01-01", "2020-01-01 12:00:00", None]),
        ([NOON, THERE], ["2020-01-01 12:00:00", "2020-01-01 12:00:00+02:00"]),
        ([NOON, pd.Timestamp(NOON), pd.NaT], [NOON, NOON, None]),
        ([THERE, pd.NaT], [THERE, None]),
        ([THERE, None], [THERE, None]),
    ],
)
def test_dates_and_times_that_have_no_common_type_become_text(values, kept):
    frame = pd.DataFrame({"when": pd.Series(values, dtype=object)})
    assert to_arrow_table(frame)["when"].to_pylist() == kept


def test_times_with_nanoseconds_become_text(folder):
    """pandas cannot hold them, so no command could read the tables."""
    nanoseconds = pa.array([1001, 2000], pa.time64("ns"))
    columns = {"whole": pa.array([1000, None], pa.time64("ns")), "other": nanoseconds}
    table = pa.table({"input": ["a.wav", "sub/b.wav"], **columns})
    pyarrow.parquet.write_table(table, folder / "m.parquet")
    rows = load_manifest(str(folder / "m.parquet")).manifest_columns
    assert rows["whole"].to_pylist() == [datetime.time(microsecond=1), None]
    assert rows["other"].to_pylist() == ["00:00:00.000001001", "00:00:00.000002000"]
    assert rows.to_pandas().shape == (2, 2)


def test_a_key_that_is_not_utf_8_is_a_fault_of_its_line(folder):
    (folder / "m.jsonl").write_text('{"input": "a.wav"}\n{"input": "b.wav", "\\ud83d": 1}\n')
    with pytest.raises(ManifestError, match="line 2: a key has a character that is not UTF-8"):
        load_manifest(str(folder / "m.jsonl"))
    (folder / "m.jsonl").write_text('{"input": "a.wav", "\\ud83d\\ude00": 1}\n')
    assert load_manifest(str(folder / "m.jsonl")).manifest_columns.column_names == ["\U0001f600"]


def test_a_link_in_a_folder_must_not_lead_outside_of_the_root(tmp_path, monkeypatch):
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("x")
    (tmp_path / "in" / "a" / "x.txt").symlink_to(tmp_path / "secret.txt")
    table = pd.DataFrame({"input": ["a"]})
    with pytest.raises(ManifestError, match=r"'a/x.txt' leaves the root .* symbolic link"):
        load_manifest(table, folders=True, root=tmp_path / "in")
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", str(tmp_path / "in"))
    with pytest.raises(ManifestError, match=r"x.txt' may not be read here"):
        load_manifest(tmp_path / "in", folders=True)
