"""Random jobs whose inputs follow scripts, and what the documentation allows for each input.

The model reads how often and when each input was executed from the log of the step alone.
"""

import itertools
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.runs.shards import shard as shards

STEPS = ["plain", "generator", "Items", "waiting", "Opened", "Batches", "TwoPhases"]
ASYNC, BATCHED = ("waiting", "Opened"), ("Batches", "TwoPhases")
# The kind of outcome of each act. An act without an entry is `ok`.
KINDS = {
    "raise": "failed",
    "pause": "failed",
    "group": "failed",
    "cancel": "failed",
    "batch": "failed",
    "exit": "crashed",
    "kill": "crashed",
    "fill": "oom",
    "hang": "timeout",
    "sleep": "timeout",
}
RETRIED = ("failed", "crashed", "oom")
# Acts that end their worker, or make the watchdog end it.
LETHAL = ("exit", "kill", "fill", "hang")
HARMLESS = ["ok", "wait 0.05", "block 0.02", "thread", "open", "move", "child", "nice"]
TIMEOUT, MEMORY = 3.0, "200MB"
# The pause before a first retry in these jobs.
FIRST_PAUSE = 0.1


class Execution(NamedTuple):
    """One execution of an input: when it began, and when its act ended, if it did."""

    begun: float
    ended: float | None


@dataclass
class Job:
    """A random job.

    Attributes:
        scripts: The acts of each input, by its name.
    """

    seed: int
    step: str = ""
    retries: int = 0
    options: dict[str, object] = field(default_factory=dict)
    rate: float = 0.0
    splits: bool = False
    scripts: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def random(cls, seed: int) -> "Job":
        """Make a job from a seed."""
        chance = random.Random(seed)
        job = cls(seed, step=chance.choice(STEPS), retries=chance.choice([0, 1, 2]))
        job.options = {"num_workers": chance.choice([1, 1, 2])}
        if job.step in ASYNC:
            job.options["concurrency"] = chance.choice([1, 2, 3, 8])
            job.rate = chance.choice([0.0, 0.0, 10.0])
        else:
            job.options["batch_size"] = chance.choice([1, 2, 4])
        job.splits = chance.random() < 0.25
        faults = ["raise", "pause 0.4", "exit 3", "exit 0", "kill"]
        # These take seconds, so they are rare.
        faults += [chance.choice(["fill", "hang", "raise", "raise"])]
        if job.step in ASYNC:
            faults += ["cancel", "group 0.3", "sleep" if chance.random() < 0.3 else "raise"]
        if job.step in BATCHED:
            faults += ["batch raise", "batch raise"]
        if job.step == "TwoPhases":
            faults += ["batch begin"]
        harmless = HARMLESS + (["in_thread 0.05"] * 2 if job.step in ASYNC else [])
        share = chance.choice([0.0, 0.1, 0.3])
        for number in range(chance.randint(1, 14)):
            length = chance.randint(1, 3)
            job.scripts[f"{number:02d}"] = [
                chance.choice(faults if chance.random() < share else harmless)
                for _ in range(length)
            ]
        return job

    @property
    def policy(self) -> FailurePolicy:
        """The limits of the job. A time limit that no input needs would make tests slow."""
        return FailurePolicy(retries=self.retries, timeout=TIMEOUT, memory_limit=MEMORY)

    @property
    def all_options(self) -> dict[str, object]:
        """The options of the run."""
        rate = {"rate": f"{self.rate:g}/s"} if self.rate else {}
        return {**self.options, **rate}

    def write(self, folder: Path) -> None:
        """Write the inputs."""
        folder.mkdir()
        for name, acts in self.scripts.items():
            (folder / name).write_text(json.dumps(acts))

    def differences(self, outcomes, log: Path, begun: float) -> list[str]:
        """Return where the outcomes and executions differ from what is allowed.

        Args:
            outcomes: All outcomes, in the order of their arrival.
            log: The folder with the executions.
            begun: When the run began.
        """
        found = {outcome.input: outcome for outcome in outcomes}
        if len(outcomes) != len(found) or set(found) != set(self.scripts):
            return [f"outcomes of {sorted(outcome.input for outcome in outcomes)}"]
        differences = []
        starts = []
        for name, acts in self.scripts.items():
            executions = _executions(log / name)
            starts += [one.begun for one in executions]
            text = f"{name} {acts}: {found[name].kind}, {found[name].reason!r}"
            deaths = self._lethal_begins(name, log) if self._is_shared(acts) else []
            faults = list(self._faults_of(acts, executions, found[name], deaths))
            faults += _early(acts, executions, deaths)
            text = f"{text}, executed {len(executions)} times"
            differences += [f"{text}: {fault}" for fault in faults]
        if self.rate:
            differences += [
                f"start {number} after {at - begun:.2f} s at {self.rate:g}/s"
                for number, at in enumerate(sorted(starts), 1)
                if number > self.rate * (at - begun)
            ]
        return differences

    def _faults_of(self, acts, executions, outcome, deaths):
        """Yield how the outcome of an input differs from what its executions allow."""
        count = len(executions)
        done = [acts[min(number, len(acts) - 1)] for number in range(count)]
        kinds = [KINDS.get(act.split()[0], "ok") for act in done]
        if self.step in BATCHED:
            # A batch is divided and loaded again, so an input may be loaded often.
            if set(kinds) == {"ok"} and outcome.kind != "ok":
                yield "an input without fault is charged"
            if outcome.kind not in kinds:
                yield f"no execution ended with {outcome.kind}"
            return
        if outcome.attempts != count:
            yield f"attempts are {outcome.attempts}"
        if kinds[-1] != outcome.kind:
            yield f"its last execution ended with {kinds[-1]}"
        # Which earlier executions can have ended with their worker, because of another input?
        is_shared = self._is_shared(acts)
        certain = [kind for kind in kinds[:-1] if kind != "ok"]
        if not is_shared and len(certain) < count - 1:
            yield "it was executed again without a fault"
        if not is_shared and any(kind not in RETRIED for kind in certain):
            yield "it was executed again after a fault that is not retried"
        most = 1 + self.retries + _interrupted(executions, deaths)
        if is_shared and {"crashed", "oom", "timeout"} & set(kinds):
            most += 1  # Once, another input may have been at fault. Then it runs alone.
        if count > most:
            yield f"more than {most} executions"
        if outcome.kind in RETRIED and count < 1 + self.retries:
            yield "too few executions"

    def _lethal_begins(self, name, log):
        """Return when other inputs began executions that may have ended a worker."""
        return [
            one.begun
            for other, acts in self.scripts.items()
            for number, one in enumerate(_executions(log / other) if other != name else ())
            if acts[min(number, len(acts) - 1)].split()[0] in LETHAL
        ]

    def _is_shared(self, acts) -> bool:
        """Return whether an input besides this one may end its worker."""
        if self.step not in ASYNC or self.options["concurrency"] == 1:
            return False
        others = list(self.scripts.values())
        others.remove(acts)
        return any(act.split()[0] in LETHAL for other in [*others, acts] for act in other)


def _executions(log: Path) -> list[Execution]:
    found: list[Execution] = []
    for line in log.read_text().splitlines() if log.exists() else ():
        what, at = line.split()[:2]
        if what == "begin":
            found.append(Execution(float(at), None))
        else:
            found[-1] = found[-1]._replace(ended=float(at))
    return found


def _interrupted(executions, deaths) -> int:
    """Return how many executions may have ended with their worker, because of another input.

    `deaths` are the times at which executions began that may have ended the worker.
    """
    return sum(
        any(one.begun - 1 < death < after.begun for death in deaths)
        for one, after in itertools.pairwise(executions)
    )


def _early(acts, executions, deaths):
    """Yield the executions that began before the pause of the one before was over.

    A failure may be lost with its worker, just before the worker sends it. Then there is no pause.
    `deaths` are the times at which executions began that may have ended the worker.
    """
    for number, (one, after) in enumerate(itertools.pairwise(executions)):
        act = acts[min(number, len(acts) - 1)]
        what, _, value = act.partition(" ")
        pause = FIRST_PAUSE if what == "raise" else 0.0
        if what in ("pause", "group"):
            pause = float(value)
        if one.ended is None or any(one.ended - 1 < death < after.begun for death in deaths):
            continue
        if after.begun < one.ended + pause:
            yield f"execution {number + 2} began {after.begun - one.ended:.2f} s after {act}"


def run_with_splits(run_shard):
    """Return a function that splits each shard while it runs, and runs both parts."""

    def run(shard, on_outcome):
        shards.ask_to_split(shard)
        result = run_shard(shard, on_outcome)
        parts = shards.split(shard)
        if parts and parts[1]:
            run(parts[1], on_outcome)
        return result

    return run


def now() -> float:
    """Return the time of the clock of the executions."""
    return time.monotonic()
