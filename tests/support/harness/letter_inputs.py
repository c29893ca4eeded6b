"""A step in several forms, and the inputs that it reads: files, pairs of files or folders."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.libraries import Site

COMMON = """
import asyncio
import os
from pathlib import Path

import ink

CODE = {code}

def value_of(factor):
    return {formula}

def text_of(source, mask=None):
    with open("executed.log", "a") as log: log.write(source.name + "\\n")
    parts = sorted(source.iterdir()) if source.is_dir() else [source, *([mask] if mask else [])]
    text = "".join(part.read_text() for part in parts)
    if text[:3] == "bad": raise ValueError(text)
    if text[:3] == "die": os._exit(3)
    mark = Path("flakes", source.name)
    if text == "flaky" and not mark.exists():
        mark.touch()
        raise OSError("the first attempt fails")
    return text
"""
STEPS = {
    "function": """
def step(source, out, *, factor{mask}):
    value = value_of(factor)
    for i, letter in enumerate(text_of(source{given})):
        (out / f"{{i}}.txt").write_text(letter * value)
        yield {{"output": f"{{i}}.txt", "letter": letter, "value": value}}
""",
    "class": """
class step:
    def __init__(self, inputs, *, factor):
        self.inputs, self.factor = [Path(path) for path in inputs], factor
    def __len__(self):
        return len(self.inputs)
    def __getitem__(self, index):
        return {{"letter": text_of(self.inputs[index]), "value": value_of(self.factor)}}
""",
    "batch": """
class step:
    collate_fn = list
    def __init__(self, inputs, *, factor):
        self.inputs, self.factor = [Path(path) for path in inputs], factor
    def __len__(self):
        return len(self.inputs)
    def __getitem__(self, index):
        return text_of(self.inputs[index])
    def process_batch(self, batch, outs):
        return self.begin_batch(batch, outs)()
    def begin_batch(self, batch, outs):
        value = value_of(self.factor)
        def finish():
            for text, out in zip(batch, outs):
                (out / "0.txt").write_text(text * value)
            return [{{"output": "0.txt", "letter": text, "value": value}} for text in batch]
        return finish
""",
    "async": """
class step:
    def __init__(self, *, factor):
        self.factor = factor
    async def __aenter__(self):
        self.value = value_of(self.factor)
        return self
    async def __aexit__(self, *error):
        self.value = None
    async def __call__(self, source, out{mask}):
        for i, letter in enumerate(text_of(source{given})):
            await asyncio.sleep(0.001)
            (out / f"{{i}}.txt").write_text(letter * self.value)
            yield {{"output": f"{{i}}.txt", "letter": letter, "value": self.value}}
""",
}
# Another form of the same code.
FORMULAS = ("10 * factor + CODE", "CODE + 10 * factor")


@dataclass
class Inputs:
    """The files of a job, its manifest, and its step in the module `letters`.

    Attributes:
        folder: The folder of the job.
        form: "file", "pair" (a file and its companion) or "folder".
        kind: The kind of the step, one of STEPS.
    """

    folder: Path
    form: str
    kind: str

    @property
    def options(self):
        """The options that the job needs."""
        return {"file": {}, "pair": {"file_columns": "mask"}, "folder": {"input_kind": "folder"}}[
            self.form
        ]

    def put(self, name, text):
        """Write an input."""
        for path, part in zip(self._paths(name), (text[:1], text[1:]), strict=False):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text if self.form == "file" else part)

    def lose(self, name, chance):
        """Delete the files of an input. One of a pair is enough."""
        paths = self._paths(name)
        for path in chance.sample(paths, chance.randint(1, len(paths))):
            path.unlink(missing_ok=True)
        if self.form == "folder":
            shutil.rmtree(paths[0].parent, ignore_errors=True)

    def touch(self, name, moment):
        """Change only the times of the files of an input."""
        for path in self._paths(name):
            os.utime(path, (moment, moment))

    def write_step(self, *, code, form, remark):
        """Write the module with the step."""
        is_pair = self.form == "pair"
        step = STEPS[self.kind].format(
            mask=", mask" if is_pair else "", given=", mask" if is_pair else ""
        )
        text = COMMON.format(code=code, formula=FORMULAS[form]) + step + f"# {remark}\n"
        (self.folder / "letters.py").write_text(text)
        # Python compares the size of a file, and its time in whole seconds.
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)

    def install_library(self, version):
        """Install the library `ink`, which the step imports, in another version."""
        Site(self.folder).install("ink", f"{version}.0", {"ink.py": ""})

    def write_manifest(self, names):
        """Write the manifest `m.csv`."""
        is_pair = self.form == "pair"
        rows = [f"in/{name},in/{name}.mask" if is_pair else f"in/{name}" for name in names]
        lines = ["input,mask" if is_pair else "input", *rows]
        (self.folder / "m.csv").write_text("\n".join(lines) + "\n")

    def clear_log(self):
        """Forget which inputs were executed, and which have failed once."""
        (self.folder / "executed.log").write_text("")
        shutil.rmtree(self.folder / "flakes", ignore_errors=True)
        (self.folder / "flakes").mkdir()

    def executed(self):
        """Return the names of the inputs in the order of their executions."""
        return (self.folder / "executed.log").read_text().split()

    def _paths(self, name):
        place = self.folder / "in" / name
        return {
            "file": [place],
            "pair": [place, place.with_name(f"{name}.mask")],
            "folder": [place / "0", place / "1"],
        }[self.form]
