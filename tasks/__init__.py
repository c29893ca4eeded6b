"""Prefect tasks: unwrap the arguments, call the engine, return."""
