"""The uses of results: tables and report, reading, exports, upkeep."""
