"""The page of a run while it is trained, served to browsers of this machine alone.

There are two addresses, the page and its data, below a token that nobody can guess; nothing else can be asked for, and
nothing can be changed. Files are read again when they have changed, the less often the longer that takes.
"""

import secrets
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from iecl.errors import UserError
from iecl.reporting.cache import last_sights
from iecl.reporting.making import describe
from iecl.reporting.page import written
from iecl.runs.directory import RunDirectory, strict_json

HOST = "127.0.0.1"
LEAST_WAIT, LONGEST_WAIT = 2.0, 60.0
"""Seconds between two looks."""
SHARE = 20
"""A look may take one part in so many of the time: training has the rest."""


class LiveServer:
    """Serves the page of some runs. Use it as a context."""

    def __init__(self, runs: Sequence[Path | str], port: int = 0) -> None:
        self.runs, self.answers = runs, 0
        self._lock = threading.Lock()
        self._document: dict[str, Any] = {}
        self._changed: tuple[tuple[int, int], ...] = ()
        self._seen = 0.0
        self.document()  # whatever is wrong with the runs is said now
        self.token = secrets.token_urlsafe(18)
        try:
            self.server = ThreadingHTTPServer((HOST, port), type("Handler", (_PageHandler,), {"live": self}))
        except (OSError, OverflowError) as problem:
            raise UserError(f"port {port} cannot be used: {problem}", where="--port", do="leave it out") from problem
        self.server.daemon_threads = True
        self.url = f"http://{HOST}:{self.server.server_port}/{self.token}/"

    def __enter__(self) -> "LiveServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.server_close()

    def serve(self) -> None:
        """Answer until somebody interrupts it."""
        self.server.serve_forever(poll_interval=0.2)

    def document(self) -> dict[str, Any]:
        """What the runs say now, with a mark that changes when they do, and when to ask again."""
        with self._lock:
            now, state = time.monotonic(), _state(self.runs)
            if self._document and (state == self._changed or now - self._seen < self._document["wait"] / 1000):
                return self._document
            made = describe(self.runs)
            took = time.monotonic() - now
            wait = min(LONGEST_WAIT, max(LEAST_WAIT, SHARE * took))
            sights = last_sights(RunDirectory(self.runs[0]))
            made |= {"sights": sights or {"notes": [NO_PICTURES]}, "mark": str(hash(state)), "wait": round(1000 * wait)}
            self._document, self._changed, self._seen = made, state, time.monotonic()
            return made


NO_PICTURES = "Pictures and the map are made by iecl report, which may be called while a run is trained."


def _state(runs: Sequence[Path | str]) -> tuple[tuple[int, int], ...]:
    """Times and sizes of the files that the page is read from."""
    found = []
    for run in map(RunDirectory, runs):
        files = [run.metrics, run.summary, run.settings, run.skipped, run.log, run.evaluations, run.path / "report"]
        for file in (*files, run.checkpoints):
            try:
                known = file.stat()
                found.append((known.st_mtime_ns, known.st_size))
            except OSError:
                found.append((0, 0))
    return tuple(found)


class _PageHandler(BaseHTTPRequestHandler):
    """Knows two addresses."""

    live: LiveServer
    server_version, sys_version = "iecl", ""

    def do_GET(self) -> None:
        """The page, or its data if they have changed; anything else is not there."""
        asked, live = urlsplit(self.path), self.live
        names = {f"{HOST}:{live.server.server_port}", f"localhost:{live.server.server_port}"}
        is_page, is_data = (
            secrets.compare_digest(asked.path.encode(errors="replace"), f"/{live.token}/{name}".encode())
            for name in ("", "data.json")
        )
        if not (is_page or is_data) or self.headers.get("Host") not in names:
            self._answer(404, b"", "text/plain")
            return
        live.answers += 1
        try:
            document = live.document()
        except UserError as problem:  # the run was moved away
            self._answer(503, problem.what.encode(errors="replace"), "text/plain")
            return
        if is_page:
            self._answer(200, written(document, is_live=True).html.encode(), "text/html")
        elif parse_qs(asked.query).get("have") == [document["mark"]]:
            self._answer(204, b"", "application/json")
        else:
            self._answer(200, strict_json(document).encode(), "application/json")

    def _answer(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
        headers |= {"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line."""
