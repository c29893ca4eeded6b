"""The tables and the report that users read."""
