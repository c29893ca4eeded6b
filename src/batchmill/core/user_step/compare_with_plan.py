"""Check that a process runs the step that its run was planned with.

The step may be edited during a run, and another machine may have other files. Results of such a
step must not be recorded as results of the planned step.
"""

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from batchmill.core.user_step.code.files import source_file
from batchmill.core.user_step.code.reachable import digests_in
from batchmill.core.user_step.fingerprint import imported_values, roots_of
from batchmill.core.user_step.load import Step
from batchmill.core.user_step.tracked_file import FileState, state_of
from batchmill.errors import StepError

# The identities of steps whose imported modules this process has compared with a plan. The imported
# code stays the same when a file changes later.
_compared: set[str] = set()


def differences_from_plan(step: Step, planned: Mapping[str, Any]) -> list[str]:
    """Compare a step, as this machine has it, with its description in a run's plan.

    Only definitions that both machines have are compared, because others may come from optional
    imports. A step that uses another definition differs itself.

    Args:
        step: The step.
        planned: The description in the plan.

    Returns:
        One text per difference, which names the file.
    """
    here, there = step.description["code"], planned["code"]
    definitions = [
        f"{here[key]['path']} ({source_file(key.partition(':')[0])})"
        for key in sorted(here.keys() & there.keys())
        if here[key]["digest"] != there[key]["digest"]
    ]
    return [*definitions, *_differing_contents(step, planned)]


def _differing_contents(step: Step, planned: Mapping[str, Any]) -> list[str]:
    here = step.description
    texts = [
        f"the content of {tracked.path} ({name})"
        for name, tracked in step.tracked.items()
        if name in planned["params"] and here["params"][name] != planned["params"][name]
    ]
    if here["version"] != planned["version"] and not texts:
        files = "".join(f" ({tracked.path})" for tracked in step.tracked.values())
        texts.append(f"the step's version{files}")
    return texts


@dataclass
class _Watched:
    """A file or folder that the step may read while it runs.

    `text` describes it for messages. `state` has its sizes and times when its content was last
    compared with the `expected` digest.
    """

    text: str
    read_state: Callable[[], FileState]
    read_content: Callable[[], object]
    expected: object
    state: FileState | None = None

    def has_changed(self) -> bool:
        """Return whether the content differs from the expected one. Read it only if needed."""
        try:
            state = self.read_state()  # Before the content, so that a later change is noticed.
            if state == self.state:
                return False
            if self.read_content() != self.expected:
                return True
        except OSError:
            return True
        self.state = state
        return False


@dataclass
class PlannedStep:
    """A step in a process that executes a shard. It is compared with the run's plan.

    Attributes:
        step: The step, as this process has loaded it.
        identity: The identity of the planned step.
        planned: The description of the planned step.
    """

    step: Step
    identity: str
    planned: Mapping[str, Any]
    _watched: list[_Watched] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Compare the step with the plan. Raises StepError."""
        compare = _differing_contents if self.identity in _compared else differences_from_plan
        self._refuse(compare(self.step, self.planned))
        _compared.add(self.identity)
        self._watched = [*self._modules_to_import(), *self._tracked_files()]
        self.check()

    def check(self) -> None:
        """Check the files that the step may read while it runs. Call this before each commit.

        Raises:
            StepError: A module that is not imported yet, or a file whose content is part of the
                step's identity, differs from the plan.
        """
        self._refuse([watched.text for watched in self._watched if watched.has_changed()])

    def _modules_to_import(self) -> list[_Watched]:
        code = self.step.description["code"] | self.planned["code"]
        roots = roots_of(self.step.ref, self.step.target, self.step.params)
        if "imports" in self.planned:
            roots = [*imported_values(self.planned)]
        expected: dict[str, dict[str, str]] = {}
        for key, entry in code.items():
            module = key.partition(":")[0]
            if module:  # Not a value, which was sent to this process.
                expected.setdefault(module, {})[key] = entry["digest"]
        paths = {name: source_file(name) for name in expected if name not in sys.modules}
        return [
            _Watched(
                f"the source of {name} ({path})",
                partial(state_of, [path]),
                partial(digests_in, name, [key.partition(":")[2] for key in expected[name]], roots),
                expected[name],
            )
            for name, path in paths.items()
            if path
        ]

    def _tracked_files(self) -> list[_Watched]:
        return [
            _Watched(
                f"the content of {tracked.path} ({name})",
                partial(tracked.mark.state, tracked.path),
                partial(tracked.mark.content, tracked.path),
                tracked.content,
                tracked.state,
            )
            for name, tracked in self.step.tracked.items()
        ]

    def _refuse(self, texts: list[str]) -> None:
        if texts:
            raise StepError(
                f"step {self.step.ref}: on {socket.gethostname()}, {' and '.join(texts)} is not "
                "what the run was planned with, so results are not recorded. If you changed it, "
                "run the same command again. Otherwise install the same version on all machines."
            )
