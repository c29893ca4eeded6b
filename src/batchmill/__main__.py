"""Run the command line for `python -m batchmill`."""

from batchmill.cli.main import main

# Prefect's registry of collections imports all modules.
if __name__ == "__main__":
    main()
