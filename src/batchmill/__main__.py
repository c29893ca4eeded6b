"""Run the command line for `python -m batchmill`."""

from batchmill.cli.main import main

main()
