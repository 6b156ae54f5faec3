"""Do damaged and hostile files crash a command, or make it say what a terminal obeys?

    python -m benchmarks.faults.readers [COUNT]

Each function puts faults into the files of a small finished run, calls commands on it in this process, and counts. A
fault is lost if a command ends with a traceback, does not end, or prints a control character.
"""

import json
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from hashlib import blake2b
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.faults.trees import edited, toml
from iecl import api
from iecl.cli.command import main as iecl
from iecl.console import terminal
from iecl.data.pack_format import PRELUDE
from iecl.data.pack_writer import pack
from iecl.runs.claim import Claim
from iecl.runs.directory import RunDirectory, write_json
from iecl.studies.call import study

SECONDS, LONGEST = 20, 600
"""A command on a tiny run that computes for so long, or waits for so long on a busy machine, does not answer."""
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e\u2066\u2028\r\nerror: forged"
"""Sets a title, clears the screen, colors, turns text around, and adds a line."""


class Count(NamedTuple):
    """How many faults there were, and what became of them."""

    tried: int
    survived: int
    lost: int


class Outcome(NamedTuple):
    """What a command did."""

    code: int | None
    """None: it ended with a traceback, or not at all."""
    said: str
    problem: str

    @property
    def is_lost(self) -> bool:
        """Whether it did what no command may do."""
        return self.code not in (0, 1, 2) or FORBIDDEN.search(self.said) is not None


def call(*words: str) -> Outcome:
    """One command in this process."""
    said = StringIO()
    terminal.cache_clear()  # it would hold on to another standard error
    with redirect_stdout(said), redirect_stderr(said):
        try:
            with _deadline():
                return Outcome(iecl(list(words)), said.getvalue(), "")
        except SystemExit as ended:  # --help
            return Outcome(int(ended.code or 0), said.getvalue(), "")
        except (Exception, NoAnswer) as problem:
            return Outcome(None, said.getvalue(), f"{type(problem).__name__}: {problem}"[:200])
        finally:
            terminal.cache_clear()


class NoAnswer(BaseException):
    """Raised in a command that takes too long, which must not take it for an error of a file."""


@contextmanager
def _deadline() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise NoAnswer

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, LONGEST)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def make_run(folder: Path) -> Path:
    """A small finished run with one result, as the commands leave it."""
    words = [
        "data.image_size=16",
        "method.hidden_dim=8",
        "method.out_dim=4",
        "method.queue_size=8",
        "data.num_workers=0",
    ]
    words += ["training.loggers=[]", "training.log_steps=1", "optimizer.warmup_epochs=1.0", "training.accelerator=cpu"]
    run = api.pretrain(
        _images(folder / "images"),
        folder / "run",
        method="moco-v2",
        backbone="resnet10-w16",
        epochs=2,
        batch_size=4,
        sets=words,
        quiet=True,
    )
    run.evaluate("knn", quiet=True)
    kept = {name: run.settings[name] for name in ("method", "data", "optimizer", "training")}
    (run.path / "recipe.toml").write_text(toml({"base": "moco-v2/cifar", **kept}))
    _make_study(folder / "images", run.path)
    return run.path


def _make_study(images: Path, place: Path) -> None:
    """A study of two arms, one of them finished."""
    base = {"recipe": "simclr/cifar", "method.hidden_dim": 8, "method.out_dim": 4, "backbone.name": "resnet10-w16"}
    base |= {"data.image_size": 16, "training.epochs": 1, "training.batch_size": 4, "training.accelerator": "cpu"}
    asked = {"name": "study", "data": [str(images)], "evaluations": ["knn"], "base": base}
    arms: dict[str, Any] = {"first": {}, "second": {"optimizer.lr": 0.1}}
    finished = {"study": asked, "arms": {"first": arms["first"]}}
    study(finished, place / "study", workers=0, keep="none", quiet=True)
    (place / "study.toml").write_text(toml({"study": asked, "arms": arms}))


def _images(folder: Path) -> Path:
    from PIL import Image

    drawn = random.Random(0)
    for number in range(24):
        path = folder / ("light" if number % 2 else "dark") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = bytes(value // 2 + 100 * (number % 2) for value in drawn.randbytes(768))
        Image.frombytes("RGB", (16, 16), noise).save(path)
    return folder


@contextmanager
def without_work() -> Iterator[None]:
    """Commands go as far as the work itself, which would take minutes: what comes before it reads the files."""
    result = {"evaluation": "knn", "numbers": ["top1"], "top1": 0.5, "n_test": 8, "n_train": 16, "classes": 2}
    result |= {"skipped": 0, "protocol_id": "knn/1", "protocol_hash": "0", "weights": ""}

    def measured(name: str, evaluation: Any, bench: Any, **_: Any) -> dict[str, Any]:
        assert bench.data.name
        return result

    with (
        patch("iecl.training.run.start", _ended),
        patch("iecl.evaluation.runner.measure", measured),
        patch("iecl.training.forecast.predict", side_effect=_no_forecast),
    ):
        yield


def _ended(config: Any, claim: Claim, **_: Any) -> None:
    write_json(claim.run.summary, {"finished": True, "verdict": "healthy", "reasons": [], "advice": "", "last": {}})


def _no_forecast(*_: Any, **__: Any) -> dict[str, Any]:
    from iecl.errors import UserError

    raise UserError("no forecast is made here")


def commands(run: Path, out: Path) -> dict[str, list[str]]:
    """Commands that read a run."""
    return {
        "describe": ["describe", str(run)],
        "describe --json": ["describe", str(run), "--json"],
        "compare": ["compare", str(run), "paper=50"],
        "report": ["report", str(run), str(run), "--out", f"{out}.html", "--images", "0", "--quiet"],
        "resume": ["pretrain", "--resume", "--out", str(run), "--quiet"],
        "recipe": ["pretrain", "--recipe", str(run), "--out", str(out), "--overwrite", "--quiet"],
        "plan": ["plan", "--recipe", str(run), "--quiet"],
        "extend": ["extend", str(run), "--epochs", "4", "--out", str(out), "--overwrite", "--quiet"],
        "evaluate": ["evaluate", "knn", str(run), "--checkpoint", "last", "--quiet"],
        "describe recipe": ["describe", str(run / "recipe.toml")],
        "start": ["pretrain", "--recipe", str(run / "recipe.toml"), "--out", str(out), "--overwrite", "--quiet"],
        "study --list": ["study", str(run / "study.toml"), "--out", str(run / "study"), "--list"],
        "study --table": ["study", str(run / "study.toml"), "--out", str(run / "study"), "--table"],
    }


READERS = {
    "metrics.jsonl": ("describe", "describe --json", "report"),
    "summary.json": ("describe", "describe --json", "report", "resume"),
    "settings.toml": (
        "describe",
        "describe --json",
        "compare",
        "report",
        "resume",
        "recipe",
        "plan",
        "extend",
        "evaluate",
    ),
    "evaluations/*.json": ("describe", "describe --json", "compare", "report"),
    "recipe.toml": ("describe recipe", "start"),
    "study/cells/*.json": ("study --list", "study --table"),
    "study/names.json": ("study --list", "study --table"),
    "study.toml": ("study --list", "study --table"),
}
"""Commands by the files that they read."""


def mutated(raw: bytes, drawn: random.Random) -> bytes:
    """The content of a file with one to three faults in it."""
    for _ in range(drawn.randint(1, 3)):
        raw = drawn.choice(FAULTS)(raw, drawn)
    return raw


def _flip(raw: bytes, drawn: random.Random) -> bytes:
    made = bytearray(raw or b" ")
    for _ in range(drawn.choice((1, 1, 4, 32))):
        made[drawn.randrange(len(made))] ^= 1 << drawn.randrange(8)
    return bytes(made)


def _cut(raw: bytes, drawn: random.Random) -> bytes:
    return raw[: drawn.randrange(len(raw) + 1)]


def _delete(raw: bytes, drawn: random.Random) -> bytes:
    start = drawn.randrange(len(raw) + 1)
    return raw[:start] + raw[start + drawn.choice((1, 8, 64)) :]


def _repeat(raw: bytes, drawn: random.Random) -> bytes:
    start = drawn.randrange(len(raw) + 1)
    end = start + drawn.choice((1, 8, 64))
    return raw[:end] + raw[start:end] + raw[end:]


def _insert(raw: bytes, drawn: random.Random) -> bytes:
    start = drawn.randrange(len(raw) + 1)
    return raw[:start] + drawn.choice(JUNK) + raw[start:]


def _drop_line(raw: bytes, drawn: random.Random) -> bytes:
    lines = raw.splitlines(keepends=True) or [b""]
    del lines[drawn.randrange(len(lines))]
    return b"".join(lines)


def _swap_value(raw: bytes, drawn: random.Random) -> bytes:
    """Another value behind some `:` or `=`."""
    places = list(re.finditer(rb"(?<=[:=] )([^\n,}{\[\]]+|\[[^\n\[\]]*\])", raw))
    if not places:
        return raw
    place = drawn.choice(places)
    return raw[: place.start()] + drawn.choice(VALUES) + raw[place.end() :]


def _swap_key(raw: bytes, drawn: random.Random) -> bytes:
    places = list(re.finditer(rb'"[\w/]+"(?=:)|^\w+(?= =)', raw, re.MULTILINE))
    if not places:
        return raw
    place = drawn.choice(places)
    return raw[: place.start()] + drawn.choice((b'"x"', b'"step"', b'"numbers"', b'""')) + raw[place.end() :]


FAULTS: Sequence[Callable[[bytes, random.Random], bytes]] = (
    *(_flip, _cut, _delete, _repeat, _insert, _drop_line, _swap_key),
    *(_swap_value, _swap_value, _swap_value),
)
JUNK = (
    *(b"\x00", b"\xff\xfe", b"\xc3", b"\x1b[31m", b"\xc2\x9b", b"\n", b'"', b"{", b"}", b"[" * 5000, b'{"a":' * 2000),
    *(b"9" * 5000, b"\xed\xa0\x80", b"\xef\xbb\xbf", b"[method]\n", b"a" * 100_000),
)
VALUES = (
    *(b"1", b"-1", b"0", b"1.5", b"1e999", b"-1e999", b"true", b"null", b"nan", b"inf", b"-inf", b'"text"', b'""'),
    *(b"[]", b"{}", b"[1, 2]", b'["a"]', b'[["a"], [1]]', b'{"a": 1}', b"{ a = 1 }", b'"NaN"', b'"Infinity"'),
    *(b"9" * 20, b"9" * 400, b"9" * 4000, b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 200 + b"]" * 200),
    *(b"[" * 5000 + b"]" * 5000, b"1979-05-27", b'"' + b"a" * 5000 + b'"', b'"\\ud800"', b'"\\u001b[31m"', b"''"),
    *(b"1000000", b"100000000000000000000", b"9223372036854775807", b"NaN", b"Infinity", b"'auto'", b'"none"'),
)


def mutated_file(run: Path, name: str, count: int, seed: int = 0, show: bool = False) -> Count:
    """Commands on a copy of a run in which one file is mutated; each fault is read by all commands that read it."""
    drawn, lost = random.Random(f"{name} {seed}"), 0
    with damageable(run, name) as (raw, losses_with):
        for number in range(count):
            found = losses_with(drawn.choice((mutated, edited))(raw, drawn))
            lost += bool(found)
            for words in found if show else []:
                print(f"{name} {number}: {words}", file=sys.stderr)
    return Count(count, count - lost, lost)


@contextmanager
def damageable(run: Path, name: str) -> Iterator[tuple[bytes, Callable[[bytes], list[str]]]]:
    """A file of a copy of a run, and what tells of commands that are lost if it holds something else."""
    with tempfile.TemporaryDirectory() as scratch, without_work():
        copy = Path(shutil.copytree(run, Path(scratch) / "run"))
        target = next(iter(sorted(copy.glob(name))))
        if name in ("metrics.jsonl", "settings.toml"):
            (copy / "summary.json").unlink()  # the run is not finished

        def losses_with(content: bytes) -> list[str]:
            target.write_bytes(content)
            found = [(words, _on(copy, Path(scratch) / "out", words)) for words in READERS[name]]
            return [f"{words}: {one.problem or one.said[:200]!r}" for words, one in found if one.is_lost]

        yield target.read_bytes(), losses_with


def _on(run: Path, out: Path, name: str) -> Outcome:
    """One command on a run, which has the same files before and after."""
    shutil.rmtree(out, ignore_errors=True)
    files = [file for file in (RunDirectory(run).history, RunDirectory(run).summary) if file.exists()]
    before = {file: file.read_bytes() for file in files}
    try:
        return call(*commands(run, out)[name])
    finally:
        for file in (RunDirectory(run).history, RunDirectory(run).summary):
            file.unlink(missing_ok=True)
        for file, raw in before.items():
            file.write_bytes(raw)


def mutated_metrics(run: Path, count: int = 300, **options: Any) -> Count:
    """Faults in metrics.jsonl."""
    return mutated_file(run, "metrics.jsonl", count, **options)


def mutated_summary(run: Path, count: int = 300, **options: Any) -> Count:
    """Faults in summary.json."""
    return mutated_file(run, "summary.json", count, **options)


def mutated_settings(run: Path, count: int = 300, **options: Any) -> Count:
    """Faults in settings.toml."""
    return mutated_file(run, "settings.toml", count, **options)


def mutated_evaluations(run: Path, count: int = 300, **options: Any) -> Count:
    """Faults in a result of an evaluation."""
    return mutated_file(run, "evaluations/*.json", count, **options)


def mutated_recipes(run: Path, count: int = 300, **options: Any) -> Count:
    """Faults in a recipe of one's own."""
    return mutated_file(run, "recipe.toml", count, **options)


def mutated_studies(run: Path, count: int = 300, **options: Any) -> Count:
    """Faults in a study, in what is known of its cells, and in their names."""
    files = [name for name in READERS if name.startswith("study")]
    found = [mutated_file(run, name, count // len(files), **options) for name in files]
    return Count(*map(sum, zip(*found, strict=True)))


def _without(section: str) -> Callable[[str], str]:
    return lambda text: re.sub(rf"(?ms)^\[{section}\]\n.*?(?=^\[|\Z)", "", text)


def _with(key: str, value: str) -> Callable[[str], str]:
    section, _, name = key.partition(".")
    return lambda text: re.sub(
        rf"(?ms)(^\[{section}\]\n(?:(?!^\[).)*?^{name} = )[^\n]*", lambda found: found[1] + value, text
    )


HOSTILE_SETTINGS: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "no [method]": _without("method"),
    "no [data]": _without("data"),
    "no [training]": _without("training"),
    "method is a number": lambda text: "method = 3\n" + _without("method")(text),
    "data is a list": lambda text: "data = [1]\n" + _without("data")(text),
    "an array of tables": lambda text: text.replace("[data]", "[[data]]"),
    "base is a number": lambda text: "base = 3\n" + text,
    "base is itself": lambda text: 'base = "moco-v2/nothing"\n' + text,
    "method.name = true": _with("method.name", "true"),
    "method.name is a list": _with("method.name", '["moco-v2"]'),
    "method.name is a table": _with("method.name", "{ a = 1 }"),
    "data.name is a number": _with("data.name", "3"),
    "data.name is empty": _with("data.name", '""'),
    "data.name has a null": _with("data.name", '"a\\u0000b"'),
    "data.name of 10 MB": _with("data.name", '"' + "a" * 10_000_000 + '"'),
    "data.name of 100 kB": _with("data.name", '"' + "a" * 100_000 + '"'),
    "data.name of 4,000 letters": _with("data.name", '"' + "a" * 4000 + '"'),
    "nested 5,000 deep": lambda text: "x = " + "[" * 5000 + "]" * 5000 + "\n" + text,
    "nested 200 deep": lambda text: "x = " + "[" * 200 + "]" * 200 + "\n" + text,
    "inline tables 5,000 deep": lambda text: "x = " + "{a=" * 5000 + "1" + "}" * 5000 + "\n" + text,
    "a key of 5,000 parts": lambda text: ".".join("a" * 5000) + " = 1\n" + text,
    "a key of 100,000 parts": lambda text: ".".join("a" * 100_000) + " = 1\n" + text,
    "a header of 1,500 parts": lambda text: text + "[" + ".".join("a" * 1500) + "]\n",
    "epochs of 4,000 digits": _with("training.epochs", "9" * 4000),
    "epochs of 5,000 digits": _with("training.epochs", "9" * 5000),
    "epochs of 5,000 hexadecimal digits": _with("training.epochs", "0x" + "f" * 5000),
    "epochs = 10^20": _with("training.epochs", "1" + "0" * 20),
    "epochs = 10^18": _with("training.epochs", "1" + "0" * 18),
    "batch = 10^18": _with("training.batch_size", "1" + "0" * 18),
    "devices = 10^9": _with("training.devices", "1" + "0" * 9),
    "workers = 10^9": _with("data.num_workers", "1" + "0" * 9),
    "image_size = 10^9": _with("data.image_size", "1" + "0" * 9),
    "decode_size = 10^9": _with("data.decode_size", "1" + "0" * 9),
    "hidden = 10^12": _with("method.hidden_dim", "1" + "0" * 12),
    "queue = 10^12": _with("method.queue_size", "1" + "0" * 12),
    "warmup = 1e308": _with("optimizer.warmup_epochs", "1e308"),
    "rate = inf": _with("optimizer.lr", "inf"),
    "mean is empty": _with("data.mean", "[]"),
    "mean of 100,000 numbers": _with("data.mean", "[" + "1," * 100_000 + "]"),
    "image_size = 0": _with("data.image_size", "0"),
    "policy = auto": _with("augmentation.policy", '"auto"'),
    "backbone = auto": _with("backbone.name", '"auto"'),
    "not UTF-8": lambda text: text.replace("moco-v2", "moco-v\udcff2"),
    "UTF-16": lambda text: text.encode("utf-16").decode("latin-1"),
    "nulls": lambda text: "\x00" * 1000,
}


def hostile_settings(run: Path, show: bool = False) -> Count:
    """Settings that somebody wrote to do harm, given to every command that reads settings."""
    tried = lost = 0
    with tempfile.TemporaryDirectory() as scratch, without_work():
        copy = Path(shutil.copytree(run, Path(scratch) / "run"))
        (copy / "summary.json").unlink()  # the run is not finished
        text = (copy / "settings.toml").read_text(encoding="utf-8")
        for name, change in HOSTILE_SETTINGS.items():
            (copy / "settings.toml").write_bytes(change(text).encode("utf-8", "surrogateescape"))
            for words in READERS["settings.toml"]:
                outcome = _on(copy, Path(scratch) / "out", words)
                tried, lost = tried + 1, lost + outcome.is_lost
                if show and outcome.is_lost:
                    print(f"settings: {name}: {words}: {outcome.problem or outcome.said[:200]!r}", file=sys.stderr)
    return Count(tried, tried - lost, lost)


def terminal_injection(run: Path, show: bool = False) -> Count:
    """Escape sequences in every name and text that commands print."""
    tried = lost = 0
    with tempfile.TemporaryDirectory() as scratch, without_work():
        for words in _injections(run, Path(scratch)):
            outcome = call(*words)
            forged = any(line.startswith("error: forged") for line in outcome.said.split("\n"))
            tried, lost = tried + 1, lost + (outcome.is_lost or forged)
            if show and (outcome.is_lost or forged):
                print(f"terminal: {words[:3]!r}: {outcome.problem or outcome.said[:200]!r}", file=sys.stderr)
    return Count(tried, tried - lost, lost)


def _injections(run: Path, scratch: Path) -> Iterator[list[str]]:
    """Words for the command, each after something hostile was prepared for it."""
    for words in (
        *(
            ["evaluate", "knn", HOSTILE],
            ["evaluate", HOSTILE, str(run)],
            ["list", HOSTILE],
            [HOSTILE],
            ["describe", HOSTILE],
        ),
        *(["compare", HOSTILE, "a=1"], ["compare", f"{HOSTILE}=50", "a=51"], ["pretrain", "--epochs", HOSTILE]),
        *(
            ["pretrain", "--data", HOSTILE],
            ["pretrain", "--data", "digits", "--set", HOSTILE],
            ["describe", f"{HOSTILE}.toml"],
        ),
        *(["pretrain", "--data", "digits", f"--{HOSTILE}"], ["pretrain", "--data", "digits", "--set", f"{HOSTILE}=1"]),
        *(["pretrain", "--data", "digits", "--set", f"data.{HOSTILE}=1"], ["pretrain", "--recipe", HOSTILE]),
        *(["pretrain", "--resume", "--out", HOSTILE], ["extend", HOSTILE, "--epochs", "3"], ["verify", HOSTILE]),
        *(["plan", "--data", HOSTILE], ["replay", HOSTILE, "--step", "1"], ["inspect", HOSTILE]),
    ):
        yield words
        yield [*words, "--json"]
        yield [*words, "--debug"]
    folder = scratch / HOSTILE.replace("/", "")
    shutil.copytree(run, folder)
    yield from commands(folder, scratch / f"out {HOSTILE}").values()
    yield ["compare", str(folder), str(run)]
    images = scratch / f"images {HOSTILE}"
    shutil.copytree(run.parent / "images", images)
    yield ["pretrain", "--data", str(images), "--out", str(scratch / HOSTILE / "made"), "--set", "data.image_size=16"]
    yield ["pretrain", "--data", str(images), "--set", "data.image_size=9999"]
    hostile = HOSTILE.encode("utf-8", "surrogatepass")
    for name, content in _hostile_contents(run):
        copy = scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        next(iter(copy.glob(name))).write_bytes(content)
        yield from commands(copy, scratch / "out").values()
        yield ["compare", str(copy), str(run), "--json"]
    packed = scratch / "packed.iecl"
    pack(str(run.parent / "images"), packed, side=16)
    _rename_skipped(packed, HOSTILE)
    out = ["--out", str(scratch / "from-packed"), "--epochs", "1", "--batch-size", "4", "--backbone", "resnet10-w16"]
    yield ["pretrain", "--data", str(packed), *out]
    (scratch / "junk.safetensors").write_bytes(hostile)
    yield ["describe", str(scratch / "junk.safetensors")]
    yield ["evaluate", "knn", str(scratch / "junk.safetensors"), "--data", "digits"]


def _hostile_contents(run: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a run whose every text, or every key, is hostile."""
    quoted = json.dumps(HOSTILE)
    settings = (run / "settings.toml").read_text(encoding="utf-8")
    in_toml = quoted.replace("\\ud", "\\ue")
    yield "settings.toml", _with("data.name", in_toml)(settings).encode()
    yield "settings.toml", _with("method.name", in_toml)(settings).encode()
    yield "settings.toml", f"{settings}\n[{in_toml}]\n".encode()
    yield "settings.toml", f"# \u009b31m\u202e\u2028\n{settings}".encode()
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    raw = json.dumps(summary | {"verdict": HOSTILE, "reasons": [HOSTILE], HOSTILE: HOSTILE}, ensure_ascii=False)
    yield "summary.json", raw.encode()
    yield "summary.json", json.dumps(summary | {"verdict": "\ud800", "reasons": ["\udfff"]}).encode()
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8")
    yield "metrics.jsonl", f"{rows}{{{quoted}: {quoted}}}\n".encode()
    found = json.loads(next(iter(sorted(run.glob("evaluations/*.json")))).read_text(encoding="utf-8"))
    texts = {name: HOSTILE for name, value in found.items() if isinstance(value, str) and name != "hits"}
    protocol = {HOSTILE: HOSTILE, "checkpoint": HOSTILE}
    renamed = {"numbers": [HOSTILE], HOSTILE: 0.5}
    yield (
        "evaluations/*.json",
        json.dumps(found | texts | {"protocol": found["protocol"] | protocol} | renamed).encode(),
    )
    yield "evaluations/*.json", f"{{{quoted}: 1".encode()
    record = json.loads(next(run.glob("study/cells/*.json")).read_text(encoding="utf-8"))
    record |= {"error": HOSTILE, "time": 0, "kind": [HOSTILE], "code": HOSTILE}
    yield "study/cells/*.json", json.dumps(record).encode()
    yield "study/names.json", f"{{{quoted}: [{quoted}]}}".encode()


def _rename_skipped(packed: Path, name: str) -> None:
    """Let a packed file say that one image called `name` could not be read."""
    raw = packed.read_bytes()
    magic, version, zero, start, length, _ = PRELUDE.unpack(raw[: PRELUDE.size])
    header = json.loads(raw[start : start + length])
    for part in header["parts"]:
        part["skipped"] = [[name, f"because {name}"]]
    changed = json.dumps(header).encode()
    digest = blake2b(changed, digest_size=32).digest()
    prelude = PRELUDE.pack(magic, version, zero, start, len(changed), digest)
    packed.write_bytes(prelude + raw[PRELUDE.size : start] + changed)


MUTATED = {
    "mutated metrics": mutated_metrics,
    "mutated summary": mutated_summary,
    "mutated settings": mutated_settings,
    "mutated evaluations": mutated_evaluations,
    "mutated recipes": mutated_recipes,
    "mutated studies": mutated_studies,
}
WRITTEN = {"hostile settings": hostile_settings, "terminal injection": terminal_injection}


def measure(count: int = 300, show: bool = False) -> dict[str, Count]:
    """All of them, on one run."""
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch))
        found = {name: mutate(run, count, show=show) for name, mutate in MUTATED.items()}
        return found | {name: ask(run, show=show) for name, ask in WRITTEN.items()}


if __name__ == "__main__":
    for title, made in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 300, show=True).items():
        print(f"{title}: {made.tried} tried, {made.survived} survived, {made.lost} lost")
