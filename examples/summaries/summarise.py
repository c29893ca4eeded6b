import os
from pathlib import Path

import httpx

from batchmill import RetryAfter


class Summarise:
    """Summarises a text with a model behind a server of OpenAI's chat completions."""

    def __init__(self, *, model: str, sentences: int = 1):
        self.model = model
        self.task = f"Summarise the text. Use at most {sentences} sentences."

    async def __aenter__(self):
        # --timeout and --concurrency limit the requests, so the client has no limits of its own.
        # With more idle connections, httpx needs more time: https://github.com/encode/httpx/issues/3215
        self.client = httpx.AsyncClient(
            base_url=os.environ["OPENAI_BASE_URL"],
            headers={"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"},
            timeout=None,
            limits=httpx.Limits(max_keepalive_connections=20),
        )
        return self

    async def __aexit__(self, *error):
        await self.client.aclose()

    async def __call__(self, source: Path) -> dict:
        messages = [
            {"role": "system", "content": self.task},
            {"role": "user", "content": source.read_text()},
        ]
        body = {"model": self.model, "messages": messages}
        answer = await self.client.post("chat/completions", json=body)
        if answer.status_code in (429, 503):
            raise RetryAfter(pause_before_retry(answer), f"the server is busy: {answer.text[:200]}")
        answer.raise_for_status()
        try:
            found = answer.json()
            summary = found["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"no chat completion: {answer.text[:200]}") from None
        return {"summary": summary, "tokens": found.get("usage", {}).get("total_tokens")}


def pause_before_retry(answer: httpx.Response) -> float:
    """Return the seconds in the Retry-After header. Without a number, return five."""
    try:
        return float(answer.headers["Retry-After"])
    except (KeyError, ValueError):
        return 5.0
