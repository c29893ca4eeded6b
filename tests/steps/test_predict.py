"""Test running models over files, with all kinds of references and files."""

import dataclasses
import json
import shutil

import models
import numpy as np
import pandas as pd
import pytest
import samples
import torch
from harness.jobs import run_job
from models import Mean

from batchmill.core.options.job_options import ModelOptions
from batchmill.core.user_step.load import load_step
from batchmill.errors import OptionError, StepError
from batchmill.steps.inference.copies import Copies
from batchmill.steps.inference.gpus import gpus_for
from batchmill.steps.inference.model_step import make_inference
from batchmill.steps.inference.models import choose_device, load_model
from batchmill.steps.predict import PredictItems, predict_with

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


@pytest.fixture
def arrays(tmp_path):
    """Return a folder with five arrays. Array i is filled with i."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    for number in range(5):
        np.save(folder / f"{number}.npy", np.full((2, 3), number, np.float32))
    return folder


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves the model in one of the forms, and returns its reference."""

    def save(form):
        if form == "reference":
            return "models:mean"
        path = tmp_path / f"mean.{form}"
        if form == "pt2":
            batch = {0: torch.export.Dim("batch")}
            example = torch.zeros(2, 2, 3)
            torch.export.save(
                torch.export.export(Mean(), (example,), dynamic_shapes=(batch,)), path
            )
        else:
            torch.jit.script(Mean()).save(path)
        return str(path)

    return save


def infer(manifest, output, *, batch_size=2, force=False, **options):
    """Run a model over a manifest, and return the summary and the table."""
    work = make_inference(options.pop("model"), ModelOptions(**options))
    summary = run_job(
        manifest, work.step, output, batch_size=batch_size, force=force, **work.params
    )
    return summary, pd.read_parquet(output / "metadata.parquet")


@pytest.mark.parametrize("form", ["pt2", "pt", "reference"])
@pytest.mark.slow
def test_every_form_of_a_model_gives_the_same_result(arrays, saved, tmp_path, form):
    summary, table = infer(arrays, tmp_path / "out", model=saved(form))
    assert summary.outcomes == {"ok": 5}
    assert [[*row] for row in map(eval, table["prediction"])] == [[n, 2 * n, 1] for n in range(5)]


def test_predicted_is_the_class_with_the_highest_score(arrays, tmp_path):
    _, table = infer(arrays, tmp_path / "out", model="models:mean", classes=["a", "b", "one"])
    assert table["predicted"].tolist() == ["one", "b", "b", "b", "b"]
    expected = [torch.tensor([n, 2 * n, 1.0]).softmax(0).max().item() for n in range(5)]
    assert table["probability"].tolist() == pytest.approx(expected)


def test_the_number_of_classes_must_match_the_scores(arrays, tmp_path):
    summary, _ = infer(arrays, tmp_path / "out", model="models:mean", classes=["a", "b"])
    assert summary.outcomes == {"failed": 5}


def test_predictions_as_files(arrays, tmp_path):
    output = tmp_path / "out"
    _, table = infer(
        arrays, output, model="models:mean", predictions="files", classes=["a", "b", "c"]
    )
    assert table["predicted"].tolist() == ["c", "b", "b", "b", "b"]
    for number, name in enumerate(table["output"]):
        assert np.load(output / name).tolist() == [number, 2 * number, 1]


def test_files_of_numbers_that_numpy_does_not_have(arrays, tmp_path):
    output = tmp_path / "out"
    summary, table = infer(arrays, output, model="models:Halves", predictions="files")
    assert summary.outcomes == {"ok": 5}
    found = [np.load(output / name) for name in table["output"]]
    assert {array.dtype for array in found} == {np.dtype("float32")}
    assert [array.tolist() for array in found] == [[n, 2 * n, 1] for n in range(5)]


def test_a_users_load_function_and_named_samples(tmp_path):
    folder = tmp_path / "numbers"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(str(number))
    _, table = infer(folder, tmp_path / "a", model="models:mean", load="models:half")
    assert [eval(row)[0] for row in table["prediction"]] == [0, 0.5, 1]
    _, table = infer(folder, tmp_path / "b", model="models:Named", load="models:pair")
    assert table["prediction"].tolist() == [0, -1, -2]


def test_samples_of_different_lengths_are_padded(tmp_path):
    folder = tmp_path / "lines"
    folder.mkdir()
    for number in range(1, 4):
        np.save(folder / f"{number}.npy", np.ones(number, np.float32))
    _, table = infer(folder, tmp_path / "a", model="models:PerSample", collate="pad", batch_size=3)
    assert table["sum"].tolist() == table["length"].tolist() == [1, 2, 3]


def test_a_file_that_cannot_be_opened_fails_alone(arrays, tmp_path):
    (arrays / "5.npy").write_bytes(b"no array")
    (arrays / "6.xyz").write_bytes(b"who knows")
    summary, table = infer(arrays, tmp_path / "out", model="models:mean")
    assert summary.outcomes == {"ok": 5, "failed": 2}
    assert len(table) == 5


def test_another_model_in_the_file_is_another_step(arrays, saved, tmp_path):
    path = saved("pt")
    infer(arrays, tmp_path / "out", model=path)
    assert infer(arrays, tmp_path / "out", model=path)[0].executed == 0
    torch.jit.script(torch.nn.Flatten()).save(path)
    summary, table = infer(arrays, tmp_path / "out", model=path)
    assert summary.executed == 5
    assert eval(table["prediction"][4]) == [4] * 6


@pytest.mark.parametrize("predictions", ["rows", "files"])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("models:Pair", "a tuple of 2 values without names"),
        ("models:TimeFirst", "has the shape (7,"),
    ],
)
def test_output_that_belongs_to_no_sample_is_rejected(
    arrays, tmp_path, predictions, model, message
):
    seen = []
    work = make_inference(model, ModelOptions(predictions=predictions))
    run_job(arrays, work.step, tmp_path / "out", batch_size=2, seen=seen, **work.params)
    assert {outcome.kind for outcome in seen} == {"failed"}
    assert all(message in outcome.message for outcome in seen)


def test_a_list_of_dicts_has_one_dict_per_sample(arrays, tmp_path):
    output = tmp_path / "out"
    _, table = infer(arrays, output, model="models:Boxes", predictions="files", batch_size=2)
    for number, name in enumerate(table["output"]):
        boxes = torch.load(output / name)["boxes"]
        assert boxes.tolist() == [[number] * 4] * 2
        # The file has no part of the results of other samples.
        assert boxes.untyped_storage().nbytes() == boxes.nbytes


def test_the_allowlist_also_limits_model_files(arrays, saved, tmp_path, monkeypatch):
    path = saved("pt2")
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", "batchmill.steps")
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_MODELS allows: nothing"):
        infer(arrays, tmp_path / "out", model=path)
    with pytest.raises(OptionError, match=r"BATCHMILL_ALLOWED_STEPS allows: batchmill\.steps"):
        infer(arrays, tmp_path / "out", model="models:mean")
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_MODELS allows: nothing"):
        load_model(path, CPU)
    monkeypatch.setenv("BATCHMILL_ALLOWED_MODELS", str(tmp_path))
    assert infer(arrays, tmp_path / "out", model=path)[0].outcomes == {"ok": 5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "models:nothing"}, "model models:nothing: models has no 'nothing'"),
        ({"model": "models:mean", "collate": "paad"}, "expected default, pad or"),
        (
            {"model": "models:mean", "load": "models:nothing"},
            "load models:nothing: models has no 'nothing'",
        ),
        ({"model": "models:mean", "load": "adio"}, "is not a kind of file"),
        ({"model": "nowhere.pt2"}, "no such file"),
        ({"model": "models:doubled"}, "to make the model, but missing a required argument: 'x'"),
        ({"model": "models:mean", "weights": "w.pt"}, "the path of the weights to make the model"),
    ],
)
def test_missing_files_and_names_are_reported_before_the_run(arrays, tmp_path, options, message):
    with pytest.raises((OptionError, StepError), match=message):
        infer(arrays, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"model": "models:broken"},
        {"model": "models:TooLarge"},
        {"model": "models:mean", "device": "quantum"},
    ],
)
def test_a_model_that_cannot_be_loaded_does_not_fail_inputs(arrays, tmp_path, options):
    with pytest.raises(StepError):
        infer(arrays, tmp_path / "out", **options)


def test_another_model_of_an_object_is_another_step(saved):
    path = saved("pt")
    before = PredictItems([], weights=path).version
    assert PredictItems([], weights=path).version == before
    torch.jit.script(torch.nn.Flatten()).save(path)
    assert PredictItems([], weights=path).version != before
    assert PredictItems([], model="models:mean").version


def test_a_model_file_that_changes_later_has_no_effect(tmp_path):
    weights = tmp_path / "weights.pt"
    torch.save({"factor": torch.tensor(2.0)}, weights)
    step = PredictItems([], model="models:scaled", weights=str(weights))
    assert step.version_files == {"model": str(weights)}
    batch = torch.ones(2, 3)
    assert step.process_batch(batch)["prediction"].tolist() == [2, 2]
    torch.save({"factor": torch.tensor(3.0)}, weights)
    assert step.process_batch(batch)["prediction"].tolist() == [2, 2]


@pytest.mark.parametrize("options", [{}, {"classes": ["a", "b", "c"]}, {"predictions": "files"}])
def test_only_the_input_with_nan_fails(arrays, tmp_path, options):
    np.save(arrays / "2.npy", np.full((2, 3), -1, np.float32))
    summary, _ = infer(arrays, tmp_path / "out", batch_size=5, model="models:Logarithm", **options)
    assert summary.outcomes == {"ok": 4, "failed": 1}
    assert summary.failures[0][0] == "2.npy"
    assert "the model returned NaN" in summary.failures[0][1]


def test_a_model_can_return_missing_values(arrays, tmp_path):
    np.save(arrays / "2.npy", np.full((2, 3), -1, np.float32))
    summary, table = infer(arrays, tmp_path / "out", model="models:Optional")
    assert summary.outcomes == {"ok": 5}
    assert table["score"].isna().tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("items", ["by_ids", "a_list", "concatenated"])
def test_any_torch_dataset_has_samples_for_a_model(arrays, tmp_path, items):
    summary = run_job(arrays, f"samples:{items}", tmp_path / "out", batch_size=3)
    assert summary.outcomes == {"ok": 5}
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert [eval(row)[0] for row in table["prediction"]] == [0, 1, 2, 3, 4]


def test_parts_of_a_random_split_have_samples_for_a_model(arrays, tmp_path):
    run_job(arrays, "samples:put_together", tmp_path / "out", batch_size=2)
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    order = [*samples.parts[0].indices, *samples.parts[1].indices]
    assert [eval(row)[0] for row in table["prediction"]] == order


def test_the_fields_of_named_tuples_become_model_arguments(arrays, tmp_path):
    run_job(arrays, "samples:nested", tmp_path / "out", batch_size=4)
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert table["prediction"].tolist() == [1, 2, 3, 4, 5]


def test_a_dataset_class_opens_the_inputs_and_makes_the_batches(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(["a", "az", "abc"]):
        (folder / f"{number}.txt").write_text(text)
    _, table = infer(folder, tmp_path / "out", model="samples:maximum", load="samples:Texts")
    assert [chr(int(value)) for value in table["prediction"]] == ["a", "z", "c"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("model", "expected a file"),
        ("models:nothing", "models has no 'nothing'"),
        ("models:number", "is a int"),
        ("models:broken", "calling it failed with RuntimeError: no weights here"),
        ("nowhere.pt2", "no such file"),
    ],
)
def test_an_object_that_is_not_a_model_is_rejected(arrays, tmp_path, model, message):
    with pytest.raises((OptionError, StepError), match=message):
        load_model(make_inference(model, ModelOptions()).params.get("weights", model), CPU)


def test_saved_weights_need_a_function_that_makes_the_model(arrays, tmp_path):
    weights = tmp_path / "weights.pt"
    torch.save({"factor": torch.tensor(2.0)}, weights)
    with pytest.raises(OptionError, match=r"--model package\.module:function --weights FILE"):
        infer(arrays, tmp_path / "out", model=str(weights))
    with pytest.raises(
        StepError, match="For saved weights, give a function that creates the model"
    ):
        load_model(str(weights), CPU)
    _, table = infer(arrays, tmp_path / "out", model="models:scaled", weights=str(weights))
    assert table["prediction"].tolist() == [0, 2, 4, 6, 8]
    torch.save({"factor": torch.tensor(3.0)}, weights)
    summary, table = infer(arrays, tmp_path / "out", model="models:scaled", weights=str(weights))
    assert (summary.executed, table["prediction"].tolist()) == (5, [0, 3, 6, 9, 12])
    with pytest.raises(OptionError, match="a model file already contains its weights"):
        make_inference("a.pt2", ModelOptions(weights=weights))


def test_devices():
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type in ("cpu", "cuda")
    with pytest.raises(StepError, match="is not a device"):
        choose_device("quantum")


def test_a_gpu_that_the_machine_does_not_have_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [choose_device(name).index for name in ("cuda", "cuda:1")] == [None, 1]
    with pytest.raises(StepError, match="finds cuda:0, cuda:1 on this machine"):
        choose_device("cuda:2")


def test_the_message_about_a_model_that_is_too_large_names_the_device():
    with pytest.raises(StepError, match=r"cpu has not enough free memory.*90 GiB\.\)$"):
        load_model("models:TooLarge", CPU)


NAN = float("nan")


@dataclasses.dataclass
class Scores:
    score: torch.Tensor


@pytest.mark.parametrize(
    "output",
    [
        {"score": torch.tensor([1.0, NAN])},
        {"score": torch.tensor([1.0, NAN], dtype=torch.bfloat16)},
        [{"score": torch.tensor(NAN)}],
        Scores(torch.tensor([1.0, NAN])),
        [Scores(torch.tensor(1.0)), Scores(torch.tensor(NAN))],
        [{"score": 1.0}, {"score": NAN}],
        {"score": np.array([NAN, 1.0], np.float16)},
    ],
)
def test_nan_in_any_form_of_output_is_an_error(output):
    step = PredictItems([], model="models:mean")
    step._loaded = Copies(torch.device("cpu")), lambda batch: output
    with pytest.raises(ValueError, match="NaN"):
        step.begin(torch.ones(2))()


def test_an_output_of_other_objects_has_no_nan():
    output = {"words": np.array(["a", None], object), "days": np.array(["NaT"], "datetime64[D]")}
    step = PredictItems([], model="models:mean")
    step._loaded = Copies(torch.device("cpu")), lambda batch: output
    assert step.begin(torch.ones(2))() is not None


@pytest.mark.parametrize("model", [Mean(), Mean, lambda: Mean()])
def test_a_given_model_or_what_makes_it_predicts(model, arrays):
    inputs = [str(path) for path in sorted(arrays.iterdir())]
    step = predict_with(model, files=False)(inputs, classes=["a", "b", "one"])
    batch = torch.stack([torch.as_tensor(step[index]) for index in range(5)])
    assert step.process_batch(batch)["predicted"] == ["one", "b", "b", "b", "b"]
    assert step.version_files == {}


def test_an_object_that_cannot_make_a_model_is_rejected():
    with pytest.raises(OptionError, match="of type int"):
        predict_with(3, files=False)
    with pytest.raises(StepError, match="If it is the model itself, name a function that returns"):
        predict_with(lambda batch: batch, files=False)


@pytest.fixture
def gpu():
    """Return the GPU. Afterwards, release the memory that torch caches in this process."""
    yield torch.device("cuda")
    torch.cuda.empty_cache()


@pytest.fixture
def models_in(shell, work):
    """Return a shell whose folder has the models and a folder of eight arrays. Array 6 has 99."""
    shutil.copy(models.__file__, work)
    (work / "arrays").mkdir()
    for number in range(8):
        value = 99 if number == 6 else number
        np.save(work / "arrays" / f"{number}.npy", np.full(4, value, np.float32))
    return shell


LOOK_UP = ["infer", "arrays", "--model", "models:LookUp", "--output", "out", "--retries", "0"]


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("form", ["pt2", "pt", "reference"])
def test_gpu_and_cpu_give_the_same_results(arrays, saved, tmp_path, gpu, form):
    model = saved(form)
    tables = [
        infer(arrays, tmp_path / device, model=model, device=device)[1]
        for device in ("cpu", str(gpu))
    ]
    values = [[number for row in table["prediction"] for number in eval(row)] for table in tables]
    assert len(values[0]) == 15
    assert values[0] == pytest.approx(values[1])


@needs_gpu
def test_a_batch_that_does_not_fit_into_a_gpu_is_halved(arrays, tmp_path, gpu):
    summary, table = infer(
        arrays, tmp_path / "out", model="models:Quarters", device=str(gpu), batch_size=5
    )
    assert summary.outcomes == {"ok": 5}
    assert set(table["batch"]) <= {1, 2}
    assert 2 in set(table["batch"])


@needs_gpu
def test_an_input_that_does_not_fit_into_a_gpu_is_oom(arrays, tmp_path, gpu):
    np.save(arrays / "5.npy", np.full((2, 3), 5, np.float32))
    np.save(arrays / "6.npy", np.full((2, 3), 99, np.float32))
    summary, table = infer(arrays, tmp_path / "out", model="models:Heavy", device=str(gpu))
    assert summary.outcomes == {"ok": 6, "oom": 1}
    assert "6.npy" not in set(table["input"])


@pytest.mark.parametrize(
    ("device", "outcome"),
    [
        pytest.param("cpu", "failed", marks=pytest.mark.long),
        pytest.param("cuda", "crashed", marks=needs_gpu),
    ],
)
def test_an_index_that_breaks_the_device_costs_only_its_input(models_in, work, device, outcome):
    done = models_in.batchmill(
        *[*LOOK_UP, "--device", device, "--batch-size", "2", "--num-workers", "2"]
    )
    assert done.returncode == 1, done.stderr
    (failure,) = json.loads(models_in.batchmill("failures", "out", "--json").stdout)
    assert (failure["input"], failure["outcome"]) == ("6.npy", outcome), failure
    table = pd.read_parquet(work / "out" / "metadata.parquet")
    assert table["entry"].tolist() == [0, 1, 2, 3, 4, 5, 7]


@needs_gpu
def test_a_run_releases_the_memory_of_the_gpu(models_in, work, gpu):
    before, total = torch.cuda.mem_get_info(gpu)
    done = models_in.batchmill(
        "infer", "arrays", "--model", "models:Resident", "--output", "out", "--device", "cuda"
    )
    assert done.returncode == 0, done.stderr
    during = pd.read_parquet(work / "out" / "metadata.parquet")["free"]
    assert during.max() < before - total // 4
    after, _ = torch.cuda.mem_get_info(gpu)
    assert after > before - total // 100


@needs_gpu
def test_a_step_can_use_the_gpu_in_its_workers(models_in, work):
    done = models_in.batchmill(
        "run", "arrays", "--step", "models:mean_in_worker", "--output", "out", "--num-workers", "2"
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(work / "out" / "metadata.parquet")
    assert table["mean"].tolist() == [0, 1, 2, 3, 4, 5, 99, 7]


@needs_gpu
def test_a_gpu_with_a_wrong_number_is_refused_and_no_input_fails(models_in, work):
    number = torch.cuda.device_count()
    done = models_in.batchmill(*LOOK_UP, "--device", f"cuda:{number}")
    assert done.returncode != 0
    words = " ".join(done.stderr.split())
    assert f"device 'cuda:{number}': torch {torch.__version__} finds cuda:0" in words
    _, status = models_in.json("status", "out")
    assert status["outcomes"] == {}


@pytest.mark.parametrize(
    ("given", "names"), [(None, ["0", "1"]), ("3, GPU-5a", ["3", "GPU-5a"]), ("", ["0", "1"])]
)
def test_gpus_have_the_names_that_the_environment_gives(monkeypatch, given, names):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert gpus_for(load_step("batchmill.steps.predict:Predict", {"model": "models:mean"})) == names


@pytest.mark.parametrize(
    ("step", "params", "gpus"),
    [
        ("batchmill.steps.predict:Predict", {}, 2),
        ("batchmill.steps.predict:Predict", {"device": "cuda"}, 2),
        ("batchmill.steps.predict:Predict", {"device": "cuda:1"}, 0),
        ("batchmill.steps.predict:PredictArrays", {"device": "cpu"}, 0),
        ("device_steps:OnDevice", {}, 0),
        ("batchmill.steps.words:split", {}, 0),
    ],
)
def test_only_a_model_that_may_use_any_gpu_uses_all(monkeypatch, step, params, gpus):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    if step.startswith("batchmill.steps.predict"):
        params = {"model": "models:mean", **params}
    assert len(gpus_for(load_step(step, params))) == gpus


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_does_not_exist_is_refused_before_the_run(models_in, work):
    done = models_in.batchmill(*LOOK_UP, "--device", "cuda")
    assert done.returncode == 2, done.stderr
    assert "finds no GPU on this machine" in " ".join(done.stderr.split())
    assert not (work / "out").exists()
