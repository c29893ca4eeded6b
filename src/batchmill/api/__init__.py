"""The Python API, except for reading a dataset."""
