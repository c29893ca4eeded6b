"""The command `batchmill`: select the command, and convert errors to exit codes.

0: done. 1: the run ended, but not every input is ok, or verify found a difference. 2: nothing was
started. 130: cancelled.
"""

import gc
import os
import re
import sys
from contextlib import nullcontext
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError, UnusedCliTokensError

from batchmill.cli.console import console
from batchmill.errors import BatchmillError, CancelledError, RunError
from batchmill.orchestration.interrupts import ignore_ctrl_c, interrupts, is_blocked
from batchmill.version import VERSION

DONE, INCOMPLETE, NOT_STARTED, CANCELLED = 0, 1, 2, 130
_RUNS = (["run"], ["infer"], ["update"])
_STAYS = " Committed results are kept. Run the same command again to resume."
_TOO_LITTLE_MEMORY = (
    "there is not enough memory. Raise the limits of this process (ulimit -v, ulimit -u, the "
    "container's limit), or use a machine with more memory."
)

# A command is imported when it is called, because `try` needs neither Prefect nor Ray. So
# `batchmill --help` shows the texts below. `batchmill COMMAND --help` shows the docstring.
_OVERVIEW = (
    ("init", "init:init", "Write a project that runs at once: a step, its test, inputs."),
    ("run", "run:run", "Run a step over every input of a manifest."),
    ("infer", "run:infer", "Run a model over every input of a manifest."),
    ("update", "run:update", "Run the recorded job of a dataset again."),
    ("try", "try_one:try_one", "Run a step on one input, in this process."),
    ("plan", "plan:plan", "Show what a run would do, and why."),
    ("status", "status:status", "Count the inputs of a dataset by outcome."),
    ("failures", "failures:failures", "List the inputs that are not ok, and why."),
    ("report", "status:report", "Rebuild a dataset's report.html."),
    ("verify", "verify:verify", "Compare a dataset's files with its ledger."),
    ("files", "versions:files", "List or copy the files of one input."),
    ("versions", "versions:versions", "List the versions of a dataset."),
    ("keep", "versions:keep", "Give a version a name, so that it stays."),
    ("diff", "versions:diff", "Compare two versions of a dataset."),
    ("review", "review:review", "Show on a sample what a change of the step does."),
    ("graph", "graph:graph", "Show the datasets that a dataset is made of."),
    ("export", "export:export", "Write a dataset as shards for training."),
    ("watch", "watch:watch", "Announce new files in a folder or bucket to Prefect."),
    ("retry", "failures:retry", "Let the next run execute failed inputs again."),
    ("reproduce", "failures:reproduce", "Pack an input and its step, to show its error elsewhere."),
    ("ui", "ui:ui", "Show Prefect's UI with the runs of this machine."),
)


# The arguments of the main commands. Otherwise, `run --help` would name none of its options.
_JOB = "MANIFEST --step REF --output DATASET"
_USAGE = {
    "run": _JOB,
    "plan": _JOB,
    "infer": "MANIFEST --model MODEL --output DATASET",
    "try": "INPUT --step REF",
}


def _shown_default(value: object) -> str | None:
    """Return the text of a default value for the help. Returns None for an empty default."""
    if not value:
        return None
    return f"{value:g}" if isinstance(value, float) else str(value)


def make_app(called: str = "") -> App:
    """Return the application. The help of the command `called` is its docstring."""
    app = App(
        name="batchmill",
        help="Run one function over every file of a manifest. One bad file does not stop the run.",
        version=VERSION,
        version_flags=["--version"],
        help_flags=["--help", "-h"],
        help_format="markdown",
        suppress_keyboard_interrupt=False,  # main() prints a message.
        default_parameter=Parameter(negative=(), show_default=_shown_default),
    )
    for name, where, what in _OVERVIEW:
        app.command(
            f"batchmill.cli.{where}",
            name=name,
            help=None if name == called else what,
            usage=f"Usage: batchmill {name} {_USAGE[name]} [OPTIONS]" if name in _USAGE else None,
        )
    app.register_install_completion_command(
        help="Let your shell complete commands, options and file names."
    )
    return app


def _reason(error: CycloptsError) -> str:
    """Return the message of an error in the arguments, with the likely fix."""
    if isinstance(error, UnknownOptionError):
        option = error.token.keyword or error.token.value
        if os.path.exists(option):
            return f"{error} To name the file: ./{option}"
        if any("--param" in argument.names for argument in error.argument_collection):
            return f"{error} A parameter of the step needs --param NAME=VALUE."
    if not isinstance(error, UnusedCliTokensError):
        return str(error)
    first, *more = error.unused_tokens or [""]
    others = f" and {len(more):,} more" if more else ""
    remedy = "Remove it, or put quotes around globs and spaces."
    takes_step = [*(error.command_chain or ())] in (["run"], ["plan"])
    if takes_step and re.fullmatch(r"[\w.]+:[\w.]+", first):
        remedy = f"To name the step and the dataset: --step {first} --output DATASET"
    return f"unexpected argument {first!r}{others}. {remedy}"


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    called = (sys.argv[1:] if arguments is None else arguments)[:1]
    with interrupts() if called in _RUNS else nullcontext():
        code = _call(called, arguments)
    if arguments is None:
        ignore_ctrl_c()
        if is_blocked.is_set():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    # This prevents a last garbage collection, which takes half a second with Prefect, Ray and
    # pandas loaded. The process frees its memory anyway.
    gc.freeze()
    sys.exit(code)


def _call(called: list[str], arguments: list[str] | None) -> int:
    """Call the command. Print its error and return the exit code."""
    errors = console(stderr=True)
    stays = _STAYS if called in _RUNS else ""
    try:
        app = make_app(*called)
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        errors.print(f"batchmill: {_reason(error)}", style="red")
        errors.print("See: batchmill --help, batchmill COMMAND --help")
        return NOT_STARTED
    except CancelledError as error:
        errors.print(f"Cancelled.{_STAYS}\n{error}")
        return CANCELLED
    except RunError as error:
        errors.print(str(error))
        return INCOMPLETE
    except BatchmillError as error:
        errors.print(f"batchmill: {error}", style="red")
        return NOT_STARTED
    except KeyboardInterrupt:
        errors.print(f"Cancelled.{stays}")
        return CANCELLED
    except (MemoryError, RuntimeError) as error:
        # The limit of `ulimit -v` also applies to the stacks of threads.
        if not isinstance(error, MemoryError) and str(error) != "can't start new thread":
            raise
        errors.print(f"batchmill: {_TOO_LITTLE_MEMORY}{stays}", style="red")
        return INCOMPLETE if stays else NOT_STARTED
    except BrokenPipeError:
        # The reader of the output has ended, for example `| head`. This is not an error.
        sys.stderr.close()
        return DONE
    return code if isinstance(code, int) else DONE
