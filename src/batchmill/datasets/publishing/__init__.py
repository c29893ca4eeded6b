"""Publish the tables and the report that users read."""
