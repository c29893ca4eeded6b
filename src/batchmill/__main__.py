"""Lets `python -m batchmill` be the command."""

from batchmill.cli.main import main

main()
