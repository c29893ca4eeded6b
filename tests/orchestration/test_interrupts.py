"""Effects of the first, the second and later signals during a run."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from batchmill.orchestration.interrupts import interrupts


def send(number=signal.SIGINT):
    """Send a signal to this process. Its handler has run when the call returns."""
    os.kill(os.getpid(), number)


def run_script(script):
    """Run a script that ends with its second signal; return its exit code and its output."""
    opening = (
        "import os, signal, threading\nfrom batchmill.orchestration.interrupts import interrupts\n"
    )
    signals = "def send():\n    os.kill(os.getpid(), signal.SIGINT)\n"
    done = subprocess.run(
        [sys.executable, "-c", opening + signals + script],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_only_the_first_signal_before_a_flow_raises(number):
    with interrupts() as signals:
        with pytest.raises(KeyboardInterrupt):
            send(number)
        send(number)  # A second exception would interrupt the clean-up after the first one.
        send(number)
    assert not signals.received


def test_a_signal_during_a_flow_raises_nothing():
    with interrupts() as signals:
        signals.defer()
        send(signal.SIGTERM)
        assert signals.received == "SIGTERM"


def test_an_inner_block_handles_the_signals_of_the_outer_block():
    before = signal.getsignal(signal.SIGINT)
    with interrupts() as outer:
        outer.defer()
        with interrupts() as inner:
            assert inner is outer
        send()
        assert outer.received == "SIGINT"
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_signal_ends_the_run_once_and_then_the_process():
    code, out, err = run_script(
        "def end():\n"
        "    print('ended', flush=True)\n"
        "    send()\n"  # The third signal interrupts nothing.
        "with interrupts() as signals, signals.at_second(end):\n"
        "    signals.defer()\n"
        "    send()\n"
        "    send()\n"
        "    print('continued', flush=True)\n"
    )
    assert (code, out) == (130, "ended\n")
    assert "Cancelled. Committed results are kept" in err


def test_the_second_signal_does_not_end_an_interactive_process():
    code, out, err = run_script(
        "import sys\n"
        "sys.ps1 = 'In : '\n"
        "with interrupts() as signals, signals.at_second(lambda: print('ended', flush=True)):\n"
        "    signals.defer()\n"
        "    send()\n"
        "    send()\n"
        "    print('continued', flush=True)\n"
    )
    assert (code, out, err) == (0, "ended\ncontinued\n", "")


def test_a_process_continues_if_its_run_ends_after_the_second_signal():
    with interrupts() as signals:
        signals.defer()
        send()
        send()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()  # An active limit would end this process.


def test_a_process_that_does_not_end_after_the_second_signal_is_ended():
    code, out, _ = run_script(
        "from batchmill.orchestration import interrupts as module\n"
        "module._END_SECONDS = 0.1\n"
        "with interrupts() as signals:\n"
        "    signals.defer()\n"
        "    send()\n"
        "    send()\n"
        "    threading.Event().wait()\n"
    )
    assert (code, out) == (130, "")
