"""Runs batchmill as its command does; the first argument is a file for what Ray is given.

It has a line for each task: the bytes of its arguments as Ray pickles them.
"""

import sys

from batchmill.cli.main import main


def note_what_is_shipped(file):
    """Have each task of Ray's add a line to a file."""
    import ray
    from ray.remote_function import RemoteFunction

    submit = RemoteFunction._remote

    def submit_noted(function, args=None, kwargs=None, **options):
        with open(file, "a") as lines:
            lines.write(f"{len(ray.cloudpickle.dumps((args, kwargs)))}\n")
        return submit(function, args=args, kwargs=kwargs, **options)

    RemoteFunction._remote = submit_noted


if __name__ == "__main__":
    if "--ray" in sys.argv:
        note_what_is_shipped(sys.argv[1])
    del sys.argv[1]
    main()
