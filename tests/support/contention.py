"""Processes that all want the same at the same moment."""

import multiprocessing

FORK = multiprocessing.get_context("fork")


def at_once(count, function):
    """Call a function with 0, 1, ... in so many forked processes, all of which begin together.

    Returns how many of them it told something true; fails if one of them does.
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
