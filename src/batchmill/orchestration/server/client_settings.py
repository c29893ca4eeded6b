"""Settings of Prefect's client for requests that a run can do without."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import SettingsContext, get_settings_context
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, Settings

# The last settings without retries, with the settings that they were made from. To make them,
# Prefect reads its settings again from all sources, which takes 50 ms.
_last: tuple[Settings, Settings] | None = None


@contextmanager
def without_retries() -> Iterator[None]:
    """Let Prefect's client send each request of the block only once.

    Its retries would delay a run, or the end of a run, for minutes.
    """
    global _last
    context = get_settings_context()
    if _last is None or _last[0] is not context.settings:
        changed = context.settings.copy_with_update({PREFECT_CLIENT_MAX_RETRIES: 0})
        _last = context.settings, changed
    with SettingsContext(profile=context.profile, settings=_last[1]):
        yield
