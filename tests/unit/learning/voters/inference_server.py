"""A small server of the Open Inference Protocol, version 2, in a thread: the tests' models answer
through it over real sockets."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DTYPES = {"FP32": np.float32, "FP64": np.float64, "UINT8": np.uint8, "INT64": np.int64}
PATH = "/v2/models/triage"


@dataclass
class Model:
    """What the server says of its model, and how it answers; `override` replaces an answer by
    status, headers and body."""

    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    predict: Callable[..., dict[str, Any]]
    override: Callable[[str], tuple[int, dict[str, str], bytes] | None] = lambda _: None
    asked: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "name": "triage",
            "versions": ["1"],
            "platform": "test",
            "inputs": self.inputs,
            "outputs": self.outputs,
        }

    def infer(self, body: dict[str, Any]) -> dict[str, Any]:
        given = {}
        for one in body["inputs"]:
            dtype: Any = DTYPES.get(one["datatype"], object)
            given[one["name"]] = np.array(one["data"], dtype).reshape(one["shape"])
        named = {one["name"]: one for one in self.outputs}
        outputs = []
        for name, found in self.predict(**given).items():
            array = np.asarray(found)
            outputs.append(
                {
                    "name": name,
                    "datatype": named[name]["datatype"],
                    "shape": list(array.shape),
                    "data": array.reshape(-1).tolist(),
                }
            )
        return {"model_name": "triage", "outputs": outputs}


@contextlib.contextmanager
def serving(model: Model, certificate: tuple[str, str] | None = None) -> Iterator[str]:
    """The URL of the model while it is served, by TLS with a certificate and key."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            model.asked.append((self.path, None))
            self._answer(model.metadata if self.path.startswith(PATH) else None)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            model.asked.append((self.path, body))
            self._answer(model.infer(body) if self.path.endswith("/infer") else None)

        def _answer(self, answer: Any) -> None:
            given = model.override(self.path)
            status = 404 if answer is None else 200
            headers: dict[str, str] = {}
            content = json.dumps(answer).encode()
            if given is not None:
                status, headers, content = given
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # whoever asked has heard enough
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        scheme = "http" if certificate is None else "https"
        yield f"{scheme}://localhost:{server.server_port}{PATH}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
