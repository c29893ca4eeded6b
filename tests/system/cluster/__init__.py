"""Tests on a Ray cluster of several machines.

This file makes the folder a package, so that its fixtures end with its last test. Later tests of
the same process must be in the outer network namespace again.
"""
