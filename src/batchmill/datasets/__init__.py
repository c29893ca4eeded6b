"""What is done with results: tables and report, reading, exports, upkeep."""
