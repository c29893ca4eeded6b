"""What the files may say from which Prefect takes its settings; read without Prefect.

To import it takes seconds, and is not needed where they say nothing.
"""

import os
import re
import tomllib
from pathlib import Path


def prefect_home() -> Path:
    """Return Prefect's folder, unless a file says otherwise: PREFECT_HOME."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()


def may_have_server() -> bool:
    """Tell whether any place that Prefect takes its settings from may name an API."""
    if "PREFECT_API_URL" in os.environ or "PREFECT_PROFILE" in os.environ:
        return True
    return may_have_settings("api", "url")


def may_have_settings(*names: str) -> bool:
    """Tell whether a file that Prefect takes its settings from may have one with such a name.

    Or whether it may name another file with more of them.
    """
    wanted = "|".join([*names, "profiles_path"])
    mentions = re.compile(f"prefect.*({wanted})", re.IGNORECASE | re.DOTALL)
    profiles = os.environ.get("PREFECT_PROFILES_PATH") or prefect_home() / "profiles.toml"
    # In a file of Prefect's own, names have no prefix.
    texts = [_text_of(profiles), _text_of(".env"), f"prefect: {_text_of('prefect.toml')}"]
    return any(map(mentions.search, [*texts, _settings_of_project()]))


def _text_of(path: str | Path) -> str:
    """Return a file's text; none where there is no such file."""
    return Path(path).read_text(errors="replace") if Path(path).is_file() else ""


def _settings_of_project() -> str:
    """Return Prefect's part of pyproject.toml, as some text; all of it where that is not TOML."""
    text = _text_of("pyproject.toml")
    try:
        own = tomllib.loads(text).get("tool", {}).get("prefect")
    except tomllib.TOMLDecodeError:
        return text
    return f"prefect: {own}" if own else ""
