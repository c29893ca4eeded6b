"""Run batchmill, and write the size of each Ray task's arguments to a file.

The first argument is the file. It gets a line per task: the number of pickled bytes.
"""

import sys

from batchmill.cli.main import main


def log_argument_sizes(file):
    """Make each Ray task add a line to a file when it is submitted."""
    import ray
    from ray.remote_function import RemoteFunction

    submit = RemoteFunction._remote

    def submit_logged(function, args=None, kwargs=None, **options):
        with open(file, "a") as lines:
            lines.write(f"{len(ray.cloudpickle.dumps((args, kwargs)))}\n")
        return submit(function, args=args, kwargs=kwargs, **options)

    RemoteFunction._remote = submit_logged


if __name__ == "__main__":
    if "--ray" in sys.argv:
        log_argument_sizes(sys.argv[1])
    del sys.argv[1]
    main()
