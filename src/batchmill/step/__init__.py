"""The user's step: how it is found, checked, called, and what identifies its version."""
