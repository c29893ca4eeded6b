"""One input: staging, the call of the step, its rows and files, its outcome."""
