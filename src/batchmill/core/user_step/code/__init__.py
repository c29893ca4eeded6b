"""The code of a step: the definitions that it reaches, found without importing anything."""
