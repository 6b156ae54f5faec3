"""`iecl watch RUN`: the report of a run while it is trained, for a browser on this machine."""

import argparse
import signal
from contextlib import suppress
from typing import Any

from iecl.cli.command import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs and a port."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory; several are compared, up to 20")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; default: a free one")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Serve until Ctrl-C."""
    from iecl.reporting.live import LiveServer

    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(number, signal.default_int_handler)
    with LiveServer(args.runs, args.port) as server, suppress(KeyboardInterrupt):  # which is how it is meant to end
        say(args, f"open {server.url}", "only this machine can; Ctrl-C ends it, and not the run")
        server.serve()
    return {"runs": args.runs, "answers": server.answers}
