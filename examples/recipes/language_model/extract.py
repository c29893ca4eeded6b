"""Reads orders from e-mails with a language model behind an interface like that of OpenAI."""

import json
import os
from pathlib import Path

from openai import APIStatusError, AsyncOpenAI
from pydantic import BaseModel, ConfigDict, Field

from batchmill import RetryAfter

TASK = "Extract the order from the e-mail."


class Order(BaseModel):
    """The fields that the model must find. Its JSON schema is a part of the request."""

    model_config = ConfigDict(extra="forbid")

    customer: str
    product: str
    quantity: int = Field(ge=1)
    express: bool


class Extract:
    """A step: one request for each e-mail, and one row for each answer."""

    def __init__(self, *, model: str):
        self.model = model
        # A model without a price fails before it costs anything.
        self.price = json.loads(Path(__file__).with_name("prices.json").read_text())[model]
        schema = {"name": "order", "strict": True, "schema": Order.model_json_schema()}
        self.answer_format = {"type": "json_schema", "json_schema": schema}

    async def __aenter__(self):
        # It reads OPENAI_BASE_URL and OPENAI_API_KEY. batchmill retries, and limits the time.
        self.client = AsyncOpenAI(max_retries=0, timeout=None)
        return self

    async def __aexit__(self, *error):
        await self.client.close()

    async def __call__(self, source: Path) -> dict:
        try:
            answer = await self.client.chat.completions.create(
                model=self.model,
                messages=[
                    {"role": "system", "content": TASK},
                    {"role": "user", "content": source.read_text()},
                ],
                response_format=self.answer_format,
                max_completion_tokens=int(os.environ.get("MAX_TOKENS", "1000")),
            )
        except APIStatusError as error:
            if error.status_code not in (429, 503):
                raise
            seconds = error.response.headers.get("Retry-After", "5")
            raise RetryAfter(float(seconds), "the server is busy") from error
        choice = answer.choices[0]
        row = {"finish_reason": choice.finish_reason} | spent(self.price, answer.usage)
        if choice.finish_reason == "length":  # An answer that was cut off is no complete JSON.
            return row
        return row | Order.model_validate_json(choice.message.content).model_dump()


def spent(price: dict, usage) -> dict:
    """Return the tokens of a request, and its cost. Prices are dollars for a million tokens."""
    sent, received = usage.prompt_tokens, usage.completion_tokens
    cost = (sent * price["sent"] + received * price["received"]) / 1e6
    return {"sent": sent, "received": received, "cost": cost}
