"""A stand-in for a server of chat completions, to try the recipe without a model.

Its answers come from patterns, and cost nothing. Like a real server, it refuses some requests,
and cuts off answers that are too long: `python stand_in.py --port 8001 --refuse 2`.
"""

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

ORDER = re.compile(r"(\d+) ([a-z ]+?)(?= to| by| for|,|\.)")
CUSTOMER = re.compile(r"(?:the |for |^)((?:[A-Z]\w+ )(?:[A-Z]\w+|and \w+))", re.MULTILINE)


class Server(ThreadingHTTPServer):
    """Refuses the first requests with status 429, and counts all requests."""

    daemon_threads = True

    def __init__(self, port: int = 0, refuse: int = 0):
        super().__init__(("127.0.0.1", port), Handler)
        self.refuse = refuse
        self.requests = count(1)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    """Answers a request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if next(self.server.requests) <= self.server.refuse:
            self.send(429, {"error": {"message": "too many requests"}}, {"Retry-After": "0.2"})
        else:
            self.send(200, complete(request))

    def send(self, status: int, found: dict, headers: dict | None = None):
        body = json.dumps(found).encode()
        self.send_response(status)
        length = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in {**length, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def complete(request: dict) -> dict:
    """Return the answer to a request. A word counts as a token."""
    text = request["messages"][-1]["content"]
    quantity, product = ORDER.search(text).groups()
    order = {
        "customer": CUSTOMER.search(text)[1],
        "product": product,
        "quantity": int(quantity),
        "express": "by express" in text,
    }
    words = json.dumps(order).split(" ")
    limit = request["max_completion_tokens"]
    sent = sum(len(message["content"].split()) for message in request["messages"])
    received = min(len(words), limit)
    return {
        "id": "stand-in",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " ".join(words[:limit])},
                "finish_reason": "stop" if len(words) <= limit else "length",
            }
        ],
        "usage": {
            "prompt_tokens": sent,
            "completion_tokens": received,
            "total_tokens": sent + received,
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--refuse", type=int, default=0, help="the number of requests to refuse")
    server = Server(**vars(parser.parse_args()))
    print(server.url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
