"""The shared parts of tests: servers, runs in this process, comparisons."""
