"""Run a function in several processes at the same moment."""

import multiprocessing

FORK = multiprocessing.get_context("fork")


def at_once(count, function):
    """Call `function(0)`, `function(1)`, ... in `count` forked processes at the same moment.

    Returns the number of calls that returned a true value. Fails if a call fails.
    """
    gate, successes = FORK.Event(), FORK.Value("i", 0)

    def contend(number):
        gate.wait()
        if function(number):
            with successes.get_lock():
                successes.value += 1

    processes = [FORK.Process(target=contend, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    gate.set()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * count
    return successes.value
