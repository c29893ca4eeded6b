"""Retry the operations of stores whose errors may pass."""

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from batchmill.errors import StoreError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Retry:
    """A decorator that retries a function after a StoreError whose cause may pass.

    Args:
        pauses: The waiting times in seconds, one before each retry.
    """

    def __init__(self, *pauses: float) -> None:
        self.pauses = pauses

    def __call__(self, function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        """Return the function with retries."""

        @wraps(function)
        def repeat(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
            for pause in self.pauses:
                try:
                    return function(*args, **kwargs)
                except StoreError as error:
                    if not error.passing:
                        raise
                    time.sleep(pause)
            return function(*args, **kwargs)

        return repeat


retry_local = Retry(0.1, 0.5, 2.0, 5.0)
# The libraries that open URLs already retry several times.
retry_remote = Retry(1.0, 5.0)
