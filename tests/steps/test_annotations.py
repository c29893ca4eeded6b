"""Test tables of annotations: all forms, faults with their lines, and the labels of clips."""

import numpy as np
import pytest
import soundfile
from harness.jobs import run_job

from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.errors import OptionError, StepError
from batchmill.steps.annotation_tables import Annotation, AnnotationError, parse_annotations
from batchmill.steps.annotations import Labels, read_labels
from batchmill.steps.audio import split
from batchmill.steps.spectrogram import log_mel

RAVEN = (
    "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tSpecies\n"
    "1\tWaveform 1\t1\t0.5\t1.5\t0\twren\n"
    "1\tSpectrogram 1\t1\t0.5\t1.5\t0\twren\n"
    '2\tSpectrogram 1\t1\t3.0\t4.0\t0\t"big" owl\n'
    "3\tSpectrogram 1\t1\t3.0\t4.0\t0\t\n"
)
WREN, OWL = Annotation(0.5, 1.5, "wren"), Annotation(3.0, 4.0, '"big" owl')


def names(text, **options):
    return [(each.start, each.end, each.label) for each in parse_annotations(text, "t", **options)]


def test_a_raven_selection_counts_once_and_needs_a_label():
    assert parse_annotations(RAVEN, "t") == [WREN, OWL]
    assert parse_annotations("\ufeff" + RAVEN.replace("\n", "\r\n"), "t") == [WREN, OWL]


def test_times_in_a_raven_table_of_several_recordings_count_from_each_start():
    table = (
        "Selection\tBegin Time (s)\tEnd Time (s)\tBegin File\tFile Offset (s)\tAnnotation\n"
        "1\t10\t12\ta.wav\t10\twren\n"
        "2\t70\t71.5\tb.wav\t10\towl\n"
    )
    assert parse_annotations(table, "t") == [
        Annotation(10, 12, "wren", "a.wav"),
        Annotation(10, 11.5, "owl", "b.wav"),
    ]


def test_audacity_labels_may_be_points_or_have_frequencies_or_no_text():
    text = "0.5\t1.5\twren\n\\\t800.0\t950.0\n2\t2\tclick\twith a tab\n3\t4\t\n5\t6\n"
    assert names(text) == [(0.5, 1.5, "wren"), (2, 2, "click\twith a tab")]


def test_a_csv_may_have_quotes_and_name_the_recording():
    text = 'label,end,start,file\n"song, loud",2,1,site/a.wav\n\nwren,3,2,b.wav\n'
    assert parse_annotations(text, "t") == [
        Annotation(1, 2, "song, loud", "site/a.wav"),
        Annotation(2, 3, "wren", "b.wav"),
    ]


def test_the_label_column_can_be_chosen():
    text = "start,end,label,sex\n0,1,wren,female\n"
    assert names(text, label_column="Sex") == [(0, 1, "female")]


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff", ",,\n", "start,end,label\n"])
def test_an_empty_table_has_no_annotations(text):
    assert parse_annotations(text, "t") == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("start,end,label\n0,1,a\nx,2,b\n", "t, line 3: 'x' is not a number of seconds"),
        ("start,end,label\n0,nan,a\n", "t, line 2: 'nan' is not a number"),
        ("start,end,label\n3,1,a\n", "t, line 2: ends .* before it starts"),
        ("start,end,label\n0,1,a,b\n", "t, line 2: has 4 fields, its header 3"),
        ("start,end,sex\n0,1,f\n", r"t, line 1: no column with the label \(found: .*'sex'\)"),
        ("end,label\n1,a\n", "t, line 1: no column with the start"),
        ("a table\nof something\n", "t, line 1: no column with the start"),
        ("0.5\t1.5\twren\n1,5\t2\towl\n", "t, line 2: '1,5' is not a number"),
        ('start,end,label\n0,1,"a\n1,2,b\n', "t: is not a table"),
    ],
)
def test_a_fault_has_its_line_and_a_fix(text, fault):
    with pytest.raises(AnnotationError, match=fault) as raised:
        parse_annotations(text, "t")
    assert str(raised.value).endswith((".", "header 3."))


@pytest.mark.parametrize(
    ("part", "minimum", "labels"),
    [
        ((0, 0.5), 0, []),
        ((0, 0.6), 0, ["wren"]),
        ((1.5, 3), 0, ["click"]),
        ((1, 2), 0, ["wren"]),
        ((2.5, 3), 0, []),
        ((1, 2), 0.5, []),
        ((1, 2), 0.49, ["wren"]),
        ((2, 2.5), 0.1, []),
        ((0, 9), 0, ["click", "owl", "wren"]),
    ],
)
def test_a_part_has_the_labels_that_overlap_it_enough(part, minimum, labels):
    listed = [Annotation(3, 4, "owl"), Annotation(2, 2, "click"), Annotation(0.5, 1.5, "wren")]
    listed += [Annotation(3, 3.5, "owl")]
    start, end = part
    assert Labels(listed).within(start, end, minimum) == labels


@pytest.fixture
def recordings(tmp_path):
    """Return two recordings of 4 s with one file name, in two folders."""
    for site in ("north", "south"):
        (tmp_path / "in" / site).mkdir(parents=True)
        soundfile.write(tmp_path / "in" / site / "a.wav", np.zeros(4000, np.int16), 1000)
    (tmp_path / "tables").mkdir()
    return tmp_path


def labels_of(place, recording, **options):
    found = read_labels(recording, str(place), **options)
    return found.within(0, 4)


@pytest.mark.parametrize("name", ["a.Table.1.selections.txt", "a.txt", "a.csv"])
def test_a_folder_has_a_table_for_each_recording_under_its_name(recordings, name):
    north, south = (recordings / "in" / site / "a.wav" for site in ("north", "south"))
    tables = recordings / "tables"
    assert labels_of(tables, north) == []
    (tables / name).write_text(RAVEN)
    assert labels_of(tables, north) == labels_of(tables, south) == ['"big" owl', "wren"]
    (tables / "south").mkdir()
    (tables / "south" / name).write_text("0\t1\tgull\n")
    assert labels_of(tables, south) == ["gull"]
    assert labels_of(tables, north) == ['"big" owl', "wren"]


def test_tables_may_be_in_the_folder_of_the_recordings(recordings):
    folder = recordings / "in"
    (folder / "north" / "a.txt").write_text("0\t1\tgull\n")
    assert labels_of(folder, folder / "north" / "a.wav") == ["gull"]
    assert labels_of(folder, folder / "south" / "a.wav") == []


def test_one_table_for_all_names_the_recordings(recordings):
    table = recordings / "all.csv"
    table.write_text(
        "file,start,end,label\n"
        "north/a.wav,0,1,gull\n"
        "/elsewhere/south/a.flac,0,1,tern\n"
        "a,0,1,both\n"
        "b.wav,0,1,neither\n"
    )
    assert labels_of(table, recordings / "in/north/a.wav") == ["both", "gull"]
    assert labels_of(table, recordings / "in/south/a.wav") == ["both", "tern"]
    table.write_text("start,end,label\n0,1,gull\n")
    with pytest.raises(AnnotationError, match="no column that names the recording"):
        labels_of(table, recordings / "in/north/a.wav")


def test_a_table_of_another_recording_or_without_text_is_rejected(recordings):
    recording = recordings / "in/north/a.wav"
    table = recordings / "tables" / "a.csv"
    table.write_text("file,start,end,label\nb.wav,0,1,gull\n")
    with pytest.raises(AnnotationError, match=r"about 'b.wav', not about 'a.wav'"):
        labels_of(recordings / "tables", recording)
    table.write_bytes(b"start,end,label\n0,1,\xff\n")
    with pytest.raises(AnnotationError, match="not UTF-8"):
        labels_of(recordings / "tables", recording)
    with pytest.raises(AnnotationError, match="No such file"):
        labels_of(recordings / "nowhere.csv", recording)


def test_clips_have_labels(recordings, tmp_path):
    recording, table = recordings / "in/north/a.wav", recordings / "all.csv"
    table.write_text("file,start,end,label\na,0.5,1.5,wren\na,1.2,1.9,owl\n")
    cut = {"seconds": 1, "annotations": str(table)}
    rows = list(split(recording, tmp_path, **cut))
    assert [row["labels"] for row in rows] == [["wren"], ["owl", "wren"], [], []]
    assert [row["label"] for row in rows] == ["wren", None, None, None]
    some = list(split(recording, tmp_path, **cut, only_labelled=True, min_overlap_seconds=0.5))
    assert [(row["clip"], row["output"], row["label"]) for row in some] == [(1, "0001.wav", "owl")]
    assert "labels" not in next(split(recording, tmp_path, seconds=1))
    images = list(log_mel(recording, tmp_path, **cut, n_mels=4))
    assert [row["labels"] for row in images] == [row["labels"] for row in rows]
    (image,) = log_mel(
        recording, tmp_path, **cut, n_mels=4, only_labelled=True, min_overlap_seconds=0.5
    )
    assert (image["clip"], image["output"], image["label"]) == (1, "0001.npy", "owl")


def reasons(folder, table):
    job = make_job(
        manifest=str(folder / "in"),
        step="batchmill.steps.audio:split",
        output=str(folder / "out"),
        params={"seconds": 2, "annotations": table},
    )
    prepared = prepare(job)
    counts = prepared.plan.counts
    return {reason: n for reason, n in counts.items() if n}, list(prepared.step_changes)


def test_a_changed_table_executes_all_inputs_but_a_moved_table_none(recordings, monkeypatch):
    monkeypatch.chdir(recordings)
    table = recordings / "all.csv"
    table.write_text("file,start,end,label\na,0,1,wren\n")
    run_job(
        recordings / "in", "batchmill.steps.audio:split", recordings / "out",
        seconds=2, annotations="all.csv",
    )  # fmt: skip
    metadata = (recordings / "out" / "metadata.csv").read_text()
    assert metadata.count('"[""wren""]","wren"') == 2
    assert reasons(recordings, "all.csv") == ({"unchanged": 2}, [])
    table.rename(recordings / "tables" / "moved.csv")
    assert reasons(recordings, "tables/moved.csv") == ({"unchanged": 2}, [])
    (recordings / "tables" / "moved.csv").write_text("file,start,end,label\na,0,1,owl\n")
    counts, (change,) = reasons(recordings, "tables/moved.csv")
    assert counts == {"changed": 2}
    assert change.startswith("the parameter annotations changed from ")


def test_only_the_tables_of_a_folder_are_part_of_the_identity(recordings, monkeypatch):
    from batchmill.core.user_step.tracked_file import ContentCounts

    def content():
        return ContentCounts(".csv").content(str(recordings / "in"))

    before = content()
    (recordings / "in/north/b.wav").touch()
    assert content() == before
    (recordings / "in/north/a.csv").touch()
    with_table = content()
    assert with_table != before
    (recordings / "in/north/a.csv").rename(recordings / "in/south/a.csv")
    assert content() not in (before, with_table)


def test_a_missing_or_forbidden_table_is_reported_before_the_run(recordings, monkeypatch):
    with pytest.raises(StepError, match=r"nowhere\.csv: No such file"):
        reasons(recordings, str(recordings / "nowhere.csv"))
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", str(recordings / "in"))
    with pytest.raises(OptionError, match="may not be read here"):
        reasons(recordings, str(recordings / "tables"))


def test_modules_that_a_built_in_step_imports_are_part_of_its_identity():
    from batchmill.core.user_step.load import load_step

    code = load_step("batchmill.steps.audio:split").description["code"]
    assert {key.partition(":")[0] for key in code} == {
        "batchmill.steps.annotation_tables",
        "batchmill.steps.annotations",
        "batchmill.steps.audio",
        "batchmill.steps.clips",
        "batchmill.steps.recordings",
    }


def test_a_table_of_a_recording_with_a_longer_name_is_not_used(tmp_path):
    for name in ("rec.part2.Table.1", "rec.Table.12"):
        text = RAVEN if "part2" in name else RAVEN.replace("wren", "finch")
        (tmp_path / f"{name}.selections.txt").write_text(text)
    for name, bird in (("rec.wav", "finch"), ("rec.part2.wav", "wren")):
        (tmp_path / name).write_bytes(b"")
        labels = read_labels(tmp_path / name, str(tmp_path))
        assert [*labels.within(0, 2)] == [bird]


def test_ravens_table_may_have_only_the_name_of_the_recording(tmp_path):
    (tmp_path / "rec.selections.txt").write_text(RAVEN)
    (tmp_path / "rec.wav").write_bytes(b"")
    assert [*read_labels(tmp_path / "rec.wav", str(tmp_path)).within(0, 2)] == ["wren"]


def test_a_number_after_a_dot_is_a_part_of_the_name(tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("file,start,end,label\nday,0,1,a\nday.1,0,1,b\n")
    for name, label in (("day.wav", "a"), ("day.1.wav", "b")):
        (tmp_path / name).write_bytes(b"")
        assert [*read_labels(tmp_path / name, str(table)).within(0, 1)] == [label]
