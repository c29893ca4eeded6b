"""One script for each tool: SCRIPT INPUTS OUT. It has the best settings that its docstring names.

Each exits with 1 if it knows of a file that failed, and names the file if it can.
"""
