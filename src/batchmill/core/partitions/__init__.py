"""Partitions: settings, groups, assignment by hash and strata, record."""
