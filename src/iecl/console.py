"""Everything that is printed: results, log lines and one line of progress. Nothing else writes to the terminal.

Results go to standard output, all else to standard error. On a terminal the progress line is rewritten in place, in a
notebook it is a bar with the line beside it; elsewhere a plain line appears at most every 30 seconds. `NO_COLOR` is
honored.

Names and files come from anywhere and may hold what a terminal obeys. All text passes `one_line` here, on its way out.
"""

import html
import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

PLAIN_SECONDS, NOTEBOOK_SECONDS = 30.0, 0.5
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, line separators, what turns the direction of text, and lone surrogates."""


def visible(text: str) -> str:
    r"""The text with everything that a terminal obeys instead of showing it written as an escape; lines stay lines.

    >>> print(visible("red \x1b[31m, turned \u202e"))
    red \x1b[31m, turned \u202e
    """
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    r"""The same on one line: a newline in a name must not look like the end of a line.

    >>> print(one_line("cats\nerror: none"))
    cats\nerror: none
    """
    return visible(text).replace("\n", "\\n")


def json_escaped(text: str) -> str:
    """JSON with the same characters as escapes of JSON: in what `json.dumps` wrote they can only stand within text."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def show(line: str, *, as_result: bool = False) -> None:
    """Print one line: a result, or something that goes with it."""
    file = sys.stdout if as_result else sys.stderr
    print(_in_letters_of(file, one_line(line)), file=file, flush=not as_result)  # the one place that may


def forget_lost_terminal() -> None:
    """Print to nowhere from now on where the terminal was closed: one more line is an error, before all is saved."""
    for number in (1, 2):
        with suppress(OSError):  # there is no such output
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)


def _in_letters_of(file: object, text: str) -> str:
    """Escapes for letters that a terminal's encoding may not have, in a form that is right in JSON too."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(letter if letter.isascii() else json.dumps(letter)[1:-1] for letter in text)
    return text


class LineFormatter(logging.Formatter):
    """A log record as one line that can be printed, on a terminal now or from a file later."""

    def format(self, record: logging.LogRecord) -> str:
        """As any formatter, and then on one line."""
        return one_line(super().format(record))


@cache
def terminal() -> "Console":
    """The one rich console of this process."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


class TerminalHandler(logging.Handler):
    """Prints log lines above a running progress line."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LineFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line; warnings stand out, and what is meant for the log file alone is left out."""
        if getattr(record, "in_file_only", False):
            return
        style = "yellow" if record.levelno >= logging.WARNING else None
        terminal().print(_in_letters_of(terminal(), self.format(record)), style=style, markup=False)


@contextmanager
def log_to_terminal(quiet: bool = False) -> Iterator[None]:
    """Show the library's log lines while the block runs; only warnings when quiet. Nested blocks show them once."""
    logger, handler = logging.getLogger("iecl"), TerminalHandler()
    if any(isinstance(other, TerminalHandler) for other in logger.handlers):
        yield
        return
    handler.setLevel(logging.WARNING if quiet else logging.INFO)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _notebook() -> Any:
    """The module that shows things in the notebook whose kernel this process is; None: it is no kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return import_module("IPython.display") if hasattr(shell, "kernel") else None


class ProgressLine:
    """One line that says how far a long task is. Use it as a context; call `show` as often as you like."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet, self._shown_at = quiet, 0.0
        self._live: Live | None = None
        self._bar: Any = None

    def __enter__(self) -> "ProgressLine":
        return self

    def begin(self) -> None:
        """A new part of the task begins: its first line is shown at once, whenever the last one was."""
        self._shown_at = 0.0

    def show(self, text: str, share: float | None = None) -> None:
        """Replace the line by `text`; `share` is how much of the task is done, for a bar."""
        if self.quiet:
            return
        now, notebook = time.monotonic(), _notebook()
        if notebook is not None:
            if now - self._shown_at >= NOTEBOOK_SECONDS or share == 1.0:
                self._shown_at = now
                self._draw(notebook, one_line(text), share)
            return
        if not terminal().is_terminal:
            if now - self._shown_at >= PLAIN_SECONDS:
                self._shown_at = now
                show(text)
            return
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=terminal(), refresh_per_second=8, transient=True)
            self._live.start()
        if now - self._shown_at >= 0.1:
            from rich.text import Text

            self._shown_at = now
            self._live.update(Text(_in_letters_of(terminal(), one_line(text)), no_wrap=True, overflow="ellipsis"))

    def _draw(self, notebook: Any, text: str, share: float | None) -> None:
        """The line in a notebook: in one place, which each call writes anew."""
        bar = "" if share is None else f'<progress value="{share:.4f}" max="1" style="width: 16em"></progress> '
        content = {"text/plain": text, "text/html": f"{bar}<code>{html.escape(text)}</code>"}
        if self._bar is None:
            self._bar = notebook.display(content, raw=True, display_id=True)
        else:
            self._bar.update(content, raw=True)

    def count(self, what: str) -> "Counter":
        """A callable (done, total) that shows how many of `what` are done."""
        return Counter(self, what)

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class Counter:
    """Shows `what done/total` on a progress line."""

    def __init__(self, line: ProgressLine, what: str) -> None:
        self.line, self.what = line, what

    def __call__(self, done: int, total: int) -> None:
        """Show the count."""
        self.line.show(f"{self.what}  {done:,}/{total:,}", done / max(1, total))


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns of equal width, readable as text too.

    >>> print(plain_table(["step", "rate"], [["1", "0.001"], ["100", "0"]]))
    | step | rate  |
    | ---- | ----- |
    | 1    | 0.001 |
    | 100  | 0     |
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def counted(number: int, what: str) -> str:
    """A number of things in words.

    >>> counted(1, "step"), counted(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """A length of time as people say it.

    >>> duration(42), duration(150), duration(7300)
    ('42 s', '2 min 30 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def speed_of(images_per_second: float) -> str:
    """How fast images pass, with a digit more where they pass slowly.

    >>> speed_of(0.42), speed_of(1234.5)
    ('0.4 images/s', '1,234 images/s')
    """
    return f"{images_per_second:,.{0 if images_per_second >= 10 else 1}f} images/s"
