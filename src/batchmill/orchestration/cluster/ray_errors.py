"""Ray's errors, and short texts for them."""

import grpc

# Ray Client raises these errors when its connection is lost or its server process has died.
LOST_CONNECTION = (ConnectionError, grpc.RpcError)
_SHOWN = 300


def short_reason(error: Exception) -> str:
    """Return the first and the last line of an error's text, each cut to 300 characters.

    Ray's texts may contain a traceback of another process, and a long hint at the end.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    ends = dict.fromkeys([lines[0], lines[-1]])
    return " ".join(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..." for line in ends)
