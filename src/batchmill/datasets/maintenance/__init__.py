"""Keeps a dataset consistent with its ledger: verify, repair, clean up, prune, find leaks."""
