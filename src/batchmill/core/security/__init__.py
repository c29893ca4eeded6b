"""Allowlists and credentials: which steps may run, and which places they may use."""
