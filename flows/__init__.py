"""Prefect flows, one a file, and what a flow needs on the machine that it runs on."""
