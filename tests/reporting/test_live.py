"""The live page: two addresses below a token, for this machine alone, up to date, and nothing else."""

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_report import make_reported

from iecl.errors import UserError
from iecl.reporting import live
from iecl.reporting.live import LiveServer
from iecl.reporting.making import make_report
from made_images import make_images


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    return make_reported(folder, make_images(folder), is_finished=False)


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[LiveServer]:
    with pytest.MonkeyPatch.context() as patch, LiveServer([run]) as made:
        patch.setattr(live, "LEAST_WAIT", 0.0)
        patch.setattr(live, "SHARE", 0)
        made._document["wait"] = 0
        thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.server.shutdown()
        thread.join()


def ask(server: LiveServer, path: str, method: str = "GET", host: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server.server_port, timeout=20)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_it_listens_on_this_machine_alone_below_a_token(server: LiveServer) -> None:
    assert server.server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 24
    code, page = ask(server, f"/{server.token}/")
    assert code == 200
    assert b"connect-src 'self'" in page


def test_new_readings_are_in_the_next_answer_and_none_means_no_content(server: LiveServer, run: Path) -> None:
    first = json.loads(ask(server, f"/{server.token}/data.json")[1])
    assert first["runs"][0]["state"] == "interrupted"
    assert ask(server, f"/{server.token}/data.json?have={first['mark']}") == (204, b"")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "epoch": 3, "loss": 1.0}\n')
    second = json.loads(ask(server, f"/{server.token}/data.json?have={first['mark']}")[1])
    assert second["panels"][0]["series"][0]["x"][-1] == 13


def test_pictures_that_a_report_makes_meanwhile_are_in_the_next_answer_under_another_key(
    server: LiveServer, run: Path
) -> None:
    address = f"/{server.token}/data.json"
    before = json.loads(ask(server, address)[1])["sights"]
    assert "key" not in before
    make_report([run], images=6)
    first = json.loads(ask(server, address)[1])["sights"]
    make_report([run], images=8)
    second = json.loads(ask(server, address)[1])["sights"]
    assert (first["shown"], second["shown"]) == (6, 8)
    assert len({first["key"], second["key"]}) == 2  # by which the page knows that it must draw them again


@pytest.mark.parametrize(
    "path",
    ["/", "/data.json", "/wrong/", "/{token}", "/{token}/settings.toml", "/{token}/../{token}/", "/{token}/%2e%2e/x"],
)
def test_nothing_else_can_be_asked_for(path: str, server: LiveServer) -> None:
    assert ask(server, path.format(token=server.token))[0] == 404


def test_another_name_of_the_host_and_other_methods_are_refused(server: LiveServer) -> None:
    assert ask(server, f"/{server.token}/", host="evil.example")[0] == 404
    assert ask(server, f"/{server.token}/", method="POST")[0] == 501
    assert ask(server, f"/{server.token}/", method="PUT")[0] == 501


def test_a_port_that_is_taken_is_refused(server: LiveServer, run: Path) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        LiveServer([run], server.server.server_port)


def test_ctrl_c_ends_the_command_in_peace(run: Path) -> None:
    command = [sys.executable, "-m", "iecl", "watch", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("open http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "")
