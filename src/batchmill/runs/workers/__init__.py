"""Isolation: each input gets one outcome, even if it kills its process."""
