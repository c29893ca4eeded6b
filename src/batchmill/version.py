"""The version of batchmill. No other file contains it."""

VERSION = "0.1.0"
