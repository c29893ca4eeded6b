"""Files arrive while everything that watches and processes them is killed and started again."""

import os
import random
import shlex
import subprocess
import threading
from functools import partial

import pandas as pd
import psutil
import pytest
from harness.deployment import deploy, documented_commands
from harness.live import (
    ask,
    clean_environment,
    free_ports,
    shell_in,
    start_prefect_server,
    wait_for,
)
from harness.watcher import Watcher

ON_ARRIVAL = "preprocess/on-arrival"
ACTIONS = int(os.environ.get("BATCHMILL_ARRIVALS", "60"))
MIN_AGE = 2
# A run takes over the dataset of a killed one when its lease has expired.
LAST_SECONDS = 300


class Arrivals:
    """A folder whose files a deployment processes, and the processes that do it."""

    def __init__(self, shell, seed):
        self.shell = shell
        self.chance = random.Random(seed)
        self.log = [f"seed {seed!r}"]
        self.folder = shell.folder / "in"
        self.folder.mkdir()
        self.files = {}
        (self.port,) = free_ports()
        self.processes = {}
        self.start_server()
        self.deployments = deploy(shell, partial(ask, self.url), shell.folder)
        self.deployments.set_parameters(
            ON_ARRIVAL,
            step="batchmill.steps.words:split",
            params={"num_chars": 1, "overlap": 0},
            output=str(shell.folder / "out"),
            inputs={"min_age": MIN_AGE},
            run={"wait": True},
        )
        self.start_worker()
        self.start_watcher()

    # Processes

    def start_server(self):
        home = self.shell.folder.parent / "server-home"
        self.processes["server"], self.url = start_prefect_server(home, port=self.port)
        self.shell.environment["PREFECT_API_URL"] = self.url

    def start_worker(self):
        *_, command = documented_commands()
        self.processes["worker"] = self.shell.start(
            *shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def start_watcher(self):
        options = ["--deployment", ON_ARRIVAL, "--min-age", str(MIN_AGE)]
        self.processes["watcher"] = Watcher(self.shell, str(self.folder), *options).process

    def kill(self, name):
        """Kill a process. A worker dies with its runs, or alone."""
        process = psutil.Process(self.processes[name].pid)
        children = process.children(recursive=True)
        process.kill()
        if name != "worker" or self.chance.random() < 0.5:
            for child in children:
                child.kill()
        self.processes[name].wait(30)

    def kill_and_start(self, name):
        self.kill(name)
        self.pause()
        getattr(self, f"start_{name}")()

    def revive(self):
        """Start the processes that ended by themselves, as a service manager does."""
        for name in ("server", "worker", "watcher"):
            if self.processes[name].poll() is not None:
                self.log.append(f"{name} had ended")
                getattr(self, f"start_{name}")()

    def pause(self):
        """Let time pass, as between files of a recorder."""
        threading.Event().wait(self.chance.uniform(0, 3))

    # Files

    def text(self):
        return "".join(self.chance.choices("abcdefgh", k=self.chance.randint(1, 30)))

    def write(self, name=None):
        name = name or f"{len(self.log):03d}.txt"
        self.files[name] = self.text()
        (self.folder / name).write_text(self.files[name])

    def write_slowly(self):
        """Write a file letter by letter. It must never be processed before its end."""
        name = f"{len(self.log):03d}.txt"
        self.files[name] = self.text()
        with (self.folder / name).open("w") as file:
            for letter in self.files[name][:8]:
                print(letter, end="", file=file, flush=True)
                threading.Event().wait(self.chance.uniform(0, 0.5))
            file.write(self.files[name][8:])

    def burst(self):
        for number in range(20):
            self.write(f"{len(self.log):03d}-{number}.txt")

    def change(self):
        if self.files:
            self.write(self.chance.choice(sorted(self.files)))

    def rename(self):
        if self.files:
            old, new = self.chance.choice(sorted(self.files)), f"{len(self.log):03d}-moved.txt"
            self.files[new] = self.files.pop(old)
            (self.folder / old).rename(self.folder / new)

    def delete(self):
        if self.files:
            name = self.chance.choice(sorted(self.files))
            del self.files[name]
            (self.folder / name).unlink()

    def act(self):
        """Do one random thing to the files or to a process."""
        actions = {
            "write": (self.write, 5),
            "write slowly": (self.write_slowly, 3),
            "burst": (self.burst, 1),
            "change": (self.change, 3),
            "rename": (self.rename, 2),
            "delete": (self.delete, 1),
            "kill the server": (partial(self.kill_and_start, "server"), 1),
            "kill the worker": (partial(self.kill_and_start, "worker"), 1),
            "kill the watcher": (partial(self.kill_and_start, "watcher"), 1),
        }
        weights = [weight for _, weight in actions.values()]
        name = self.chance.choices(list(actions), weights)[0]
        self.log.append(name)
        actions[name][0]()
        self.pause()
        self.revive()

    # The result

    def table(self):
        """Return the content of each input, from the rows of the dataset."""
        path = self.shell.folder / "out" / "metadata.parquet"
        if not path.exists():
            return {}
        rows = pd.read_parquet(path)
        return rows.groupby("input")["part"].agg("".join).to_dict()

    def is_complete(self):
        self.revive()
        found = self.table()
        return {name: found.get(name) for name in self.files} == self.files


@pytest.mark.long
def test_every_file_is_in_the_table_with_its_last_content(tmp_path, seed):
    (tmp_path / "work").mkdir()
    environment = clean_environment(tmp_path / "home") | {"PREFECT_WORKER_QUERY_SECONDS": "2"}
    with shell_in(tmp_path / "work", environment) as shell:
        arrivals = Arrivals(shell, seed)
        try:
            for _ in range(ACTIONS):
                arrivals.act()
            arrivals.write("the-last-one.txt")
            wait_for(arrivals.is_complete, "the last content of each file", LAST_SECONDS)
        except BaseException as error:
            found = arrivals.table()
            missing = {n: (t, found.get(n)) for n, t in arrivals.files.items() if found.get(n) != t}
            error.add_note("\n".join([*arrivals.log, f"missing: {missing}"]))
            raise
        finally:
            for name in ("watcher", "worker", "server"):
                arrivals.kill(name)
            for process in shell.leftovers():
                process.kill()
