"""Test reading CSV and TSV: the rows, and the faults with their lines."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchmill import ManifestError, load_manifest
from batchmill.core.manifest.delimited import read_delimited


def faults_of(path, **options) -> tuple[str, ...]:
    with pytest.raises(ManifestError) as caught:
        load_manifest(str(path), **options)
    return caught.value.faults


@pytest.fixture
def write(tmp_path):
    for name in ("a.wav", "b.wav", "c.wav"):
        (tmp_path / name).write_bytes(b"sound")

    def write(content: str | bytes, name: str = "m.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_inputs_are_relative_to_the_manifests_folder(write, tmp_path):
    manifest = load_manifest(str(write("input\na.wav\n./b.wav\n")))
    assert manifest.inputs["input"].to_pylist() == ["a.wav", "b.wav"]
    assert manifest.root == str(tmp_path)
    assert manifest.inputs["size"].to_pylist() == [5, 5]


def test_an_absolute_path_below_the_folder_has_the_same_name(write, tmp_path):
    manifest = load_manifest(str(write(f"input\n{tmp_path}/a.wav\n")))
    assert manifest.inputs["input"].to_pylist() == ["a.wav"]


def test_without_root_a_path_outside_the_folder_is_accepted(write, tmp_path):
    below = tmp_path / "below"
    below.mkdir()
    path = below / "m.csv"
    path.write_text("input\n../a.wav\n")
    assert load_manifest(str(path)).inputs["input"].to_pylist() == ["../a.wav"]


def test_one_file_named_in_two_ways_outside_the_folder_is_a_duplicate(write, tmp_path):
    below = tmp_path / "below"
    below.mkdir()
    path = below / "m.csv"
    path.write_text(f"input\n../a.wav\n{tmp_path}/a.wav\n")
    assert "is already listed on line 2" in faults_of(path)[0]


def test_with_root_a_path_outside_of_it_is_rejected(write, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.wav").write_bytes(b"")
    path = write("input\nx.wav\n../a.wav\n/etc/passwd\n")
    found = faults_of(path, root=tmp_path / "in")
    assert [fault.split(" leaves")[0] for fault in found] == [
        "line 3: '../a.wav'",
        "line 4: '/etc/passwd'",
    ]


def test_tab_separated(write):
    manifest = load_manifest(str(write("input\tlabel\na.wav\tx,y\n", "m.tsv")))
    assert manifest.manifest_columns["label"].to_pylist() == ["x,y"]


def test_another_column_can_be_the_input(write):
    manifest = load_manifest(str(write("file,label\na.wav,1\n")), input_column="file")
    assert manifest.inputs["input"].to_pylist() == ["a.wav"]
    assert manifest.manifest_columns.column_names == ["label"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2"], [1, 2]),
        (["1", ""], [1, None]),
        (["1.5", "-2e3"], [1.5, -2000.0]),
        (["007", "12"], ["007", "12"]),
        (["1", "x"], ["1", "x"]),
        (["true", "False"], [True, False]),
        (["NA", "None"], ["NA", "None"]),
        (["", ""], [None, None]),
        (["1.10", "1.1"], ["1.10", "1.1"]),
        (["1.10", "2.25"], [1.1, 2.25]),
        (["9e999", "1"], ["9e999", "1"]),
        (["-0", "1"], [0.0, 1.0]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
        (["123456789012345.6789", "1"], ["123456789012345.6789", "1"]),
        (["0.12345678901234567", "1"], ["0.12345678901234567", "1"]),
        (["12345678901234.5", "0.1"], [12345678901234.5, 0.1]),
        (["0.30000000000000004", "1e-3"], [0.30000000000000004, 0.001]),
        (["0.10000000000000001", "12.34500000000000064"], [0.1, 12.345]),  # "%.17f" of a float
    ],
)
def test_columns_get_lossless_types(write, cells, expected):
    manifest = load_manifest(str(write(f"input,x\na.wav,{cells[0]}\nb.wav,{cells[1]}\n")))
    assert manifest.manifest_columns["x"].to_pylist() == expected


def test_numbers_in_the_input_column_stay_text(write, tmp_path):
    (tmp_path / "007").write_bytes(b"")
    assert load_manifest(str(write("input\n007\n"))).inputs["input"].to_pylist() == ["007"]


def test_quoted_fields_may_hold_separators_and_line_breaks(write):
    manifest = load_manifest(str(write('input,note\na.wav,"one, two\nthree"\nb.wav,x\n')))
    assert manifest.manifest_columns["note"].to_pylist() == ["one, two\nthree", "x"]


_CELLS = st.text('",;\n aé', max_size=4)
_TABLES = st.lists(st.tuples(_CELLS, _CELLS), max_size=5)


@given(
    _TABLES,
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(["\n", "\r\n"]),
    st.text('",\nx', max_size=3),
)
def test_quotes_mean_what_they_mean_in_the_csv_module(rows, quoting, end, odd):
    file = io.StringIO()
    writer = csv.writer(file, quoting=quoting, lineterminator=end)
    writer.writerows([("one", "two"), *rows])
    text = file.getvalue() + odd
    source = read_delimited("m.csv", text.encode(), ",")
    records, fault = [], False
    try:
        records = [*csv.reader(io.StringIO(text, newline=""), strict=True)]
    except csv.Error:
        fault = True
    blank = [record for record in records if len(record) < 2 and not "".join(record).strip()]
    records = [[cell or None for cell in record] for record in records if record not in blank]
    fault = fault or any(len(record) != 2 for record in records)
    assert bool(source.faults) == fault
    if not fault:
        cells = source.frame.astype(object).where(source.frame.notna(), None)
        assert [list(row) for row in cells.itertuples(index=False)] == records[1:]
        assert len(source.places) == len(records) - 1


def test_lines_are_counted_across_quoted_line_breaks(write):
    found = faults_of(write('input,note\na.wav,"one\ntwo"\n,x\n'))
    assert len(found) == 1
    assert found[0].startswith("line 4: no value in column 'input'")


def test_blank_lines_are_skipped_but_counted(write):
    assert faults_of(write("input,x\n\na.wav,1\n\n,2\n"))[0].startswith("line 5:")


def test_all_faults_are_reported_in_line_order(write, tmp_path):
    (tmp_path / "folder").mkdir()
    found = faults_of(write("input,x\na.wav,1,2\nfolder,1\n,1\nb.wav,1\nb.wav,1\nc.wav\n"))
    assert [fault.split(".")[0] for fault in found] == [
        "line 2: has 3 fields, the header has 2",
        "line 3: 'folder' is a folder",
        "line 4: no value in column 'input'",
        "line 6: 'b",
        "line 7: has 1 fields, the header has 2",
    ]


def test_the_same_file_under_two_names_is_a_duplicate(write):
    found = faults_of(write("input\na.wav\n./a.wav\n"))
    assert found == ("line 3: './a.wav' is already listed on line 2. Delete one.",)


def test_a_row_that_is_too_long_is_found_in_the_first_line_too(write):
    assert faults_of(write("input\na.wav,x\nb.wav\n"))[0].startswith("line 2: has 2 fields")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("input\na.wav\n".encode("utf-16"), "is UTF-16. Save the file as UTF-8."),
        (b"input\na.wav\nb\xe9.wav\n", "line 3: is not UTF-8 (byte 0xe9 at position 2)"),
        (b"input\nb\x00.wav\na.wav\n", "line 2: holds a NUL byte"),
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (b"input\n", "has a header, but no inputs"),
        (b"file\na.wav\n", "no column 'input' (found: 'file'). Line 1 is the header. Rename"),
        (b"input,output\na.wav,x\n", "column 'output' has the name of a column"),
        (b"input,x,x\na.wav,1,2\n", "line 1: duplicate column 'x'"),
    ],
)
def test_unreadable_tables_are_rejected(write, content, expected):
    assert any(fault.startswith(expected) for fault in faults_of(write(content)))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_table_that_excel_wrote_is_read(write, separator, quote):
    lines = (("input", "label"), ("a.wav", "x"), ("b.wav", "1,5" if separator == ";" else "y"))
    rows = [separator.join(f"{quote}{cell}{quote}" for cell in line) for line in lines]
    manifest = load_manifest(str(write("\ufeff" + "\r\n".join(rows))))
    assert manifest.inputs["input"].to_pylist() == ["a.wav", "b.wav"]
    assert manifest.manifest_columns["label"].to_pylist() == [lines[1][1], lines[2][1]]


def test_a_missing_relative_manifest_reports_the_searched_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = f"no such file or folder (looked in {tmp_path}). Check the path."
    assert faults_of("nosuch.csv") == (told,)
    told = "no such file or folder. Check the path."
    assert faults_of(tmp_path / "nosuch.csv") == (told,)


def test_an_unknown_format_is_rejected(write):
    assert "unknown manifest format" in faults_of(write("a.wav\n", "m.list"))[0]


def test_a_missing_input_is_not_a_manifest_fault(write):
    manifest = load_manifest(str(write("input\nnosuch.wav\n")))
    assert manifest.inputs["size"].to_pylist() == [-1]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nosuch://bucket/a.wav", "no library opens nosuch:// URLs"),
        ("s3://key:sesame@bucket/a.wav", "'s3://***bucket/a.wav' holds a credential"),
        ("s3://key:ses/sesame@bucket/a.wav", "'s3://***bucket/a.wav' holds a credential"),
        ("s3://key:ses@sesame@bucket/a.wav", "'s3://***bucket/a.wav' holds a credential"),
        ("https://sesame@host/a.wav", "'https://***host/a.wav' holds a credential"),
        ("https://host/a.wav?x=1&X-Amz-Signature=sesame", "'https://***host/a.wav' holds a"),
        ("https://host/a b.wav?X-Amz-Security-Token=sesame", "holds a credential"),
        ("https://host/a.wav?%53ignature=sesame", "holds a credential"),
        ("https://host/a.wav?apikey=sesame", "holds a credential"),
        ("https://host/a.wav?Key-Pair-Id=sesame", "holds a credential"),
        ("https://host/a.wav;sig=sesame", "holds a credential"),
        ("https://host/a.wav#access_token=sesame", "holds a credential"),
        ("zip://a.wav::s3://bucket/a.zip", "chain of URLs"),
        ("s3:///a.wav", "names no bucket"),
    ],
)
def test_an_unusable_url_is_rejected_without_showing_its_secret(write, url, expected):
    fault = faults_of(write(f"input\n{url}\n"))[0]
    assert expected in fault
    assert "sesame" not in fault


def test_the_error_lists_every_fault(write):
    with pytest.raises(ManifestError) as caught:
        load_manifest(str(write("input,x\n,1\n,2\n")))
    text = str(caught.value)
    assert "2 faults" in text
    assert "line 2:" in text
    assert "line 3:" in text


@pytest.mark.parametrize(
    "content", ['input,label\na.wav,"x\nb.wav,y\n', 'input\n"a.wav\nb.wav\n', 'input\n"a.wav"x\n']
)
def test_unclosed_quotes_are_rejected(write, content):
    assert "cannot be read as a table" in faults_of(write(content))[0]


def test_a_file_with_only_an_empty_text_in_quotes_has_no_columns(write):
    assert "no column 'input' (found: none)" in faults_of(write('""\n'))[0]


@pytest.mark.parametrize("content", ["input,v\na.wav,1,\nb.wav,2,\n", "input\na.wav,\nb.wav\n"])
def test_an_extra_empty_field_is_rejected(write, content):
    assert faults_of(write(content))[0].startswith("line 2: has")


@pytest.mark.parametrize("line", ["   ", '""'])
def test_a_line_of_spaces_or_an_empty_text_in_quotes_is_a_blank_line(write, line):
    found = faults_of(write(f"input\na.wav\n{line}\nb.wav\nb.wav\n"))
    assert found == ("line 5: 'b.wav' is already listed on line 4. Delete one.",)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_line_ends_are_accepted(write, end):
    manifest = load_manifest(str(write(end.join(["input,x", "a.wav,1", "b.wav,2", ""]))))
    assert manifest.inputs["input"].to_pylist() == ["a.wav", "b.wav"]
    assert manifest.manifest_columns["x"].to_pylist() == [1, 2]


@pytest.mark.parametrize("content", ["input\na.wav\r ", "input,x,y\n\ra.wav,1,2\n"])
def test_a_lone_carriage_return_is_a_line_end(write, content):
    assert load_manifest(str(write(content))).inputs["input"].to_pylist() == ["a.wav"]


def test_with_root_a_link_to_the_outside_is_rejected(write, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.wav").symlink_to(tmp_path / "a.wav")
    found = faults_of(write("input\nx.wav\n"), root=tmp_path / "in")
    assert "leaves the root" in found[0]
    assert load_manifest(str(write("input\nin/x.wav\n"))).inputs["size"].to_pylist() == [5]
