"""moto's S3 server, with writes one after the other: `python s3_service.py PORT`.

A conditional write of S3 is atomic. moto checks the condition and writes in two steps, so that two
of several concurrent requests could succeed.
"""

import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

_writing = threading.Lock()
_application = DomainDispatcherApplication(create_backend_app)


def serve_request(environ, start_response):
    """Answer a request. The requests that write take turns."""
    if environ["REQUEST_METHOD"] not in ("PUT", "POST"):
        return _application(environ, start_response)
    with _writing:
        return _application(environ, start_response)


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), serve_request, threaded=True)
