"""TLS and users of a real agent, in the format of Prometheus' exporters."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import bcrypt
import httpx
import psutil
import pytest
import trustme
import yaml

from rank_exporter.agent.web_config import load
from rank_exporter.errors import SettingError

USERS = {
    "prometheus": bcrypt.hashpw(b"s3cret: with colon", bcrypt.gensalt(4)).decode(),
    # As htpasswd writes it.
    "ops": bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$"),
    "long": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode(),
}
RIGHT = ("prometheus", "s3cret: with colon")


@pytest.fixture(scope="module")
def authority():
    """Issues certificates."""
    return trustme.CA()


@pytest.fixture
def tls(authority, tmp_path):
    """Files of a certificate for 127.0.0.1, in a folder of their own, and the section of the file that names them."""
    (tmp_path / "tls").mkdir()
    issue(authority, tmp_path / "tls")
    return {"cert_file": "tls/tls.crt", "key_file": "tls/tls.key"}


def issue(authority, folder):
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.crt")
    certificate.private_key_pem.write_to_path(folder / "tls.key")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    (folder / "tls.crt").write_bytes(chain)


@pytest.fixture
def reissue(authority, tmp_path):
    """Replaces the certificate by another of the authority."""
    return lambda: issue(authority, tmp_path / "tls")


@pytest.fixture
def write(tmp_path):
    """Writes the web configuration, whole, and returns its path."""

    def write(content):
        path = tmp_path / "web-config.yml"
        draft = path.with_suffix(".draft")
        draft.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return draft.replace(path)

    return write


@pytest.fixture
def serve(start_agent, start_rank, write):
    """Starts an agent of one rank with a web configuration."""

    def serve(**config):
        start_rank()
        return start_agent("--web-config-file", str(write(config)))

    return serve


@pytest.fixture
def trust(authority):
    """Makes what a client trusts and presents: the authority, and optionally a certificate of an authority."""

    def trust(client_authority=None):
        context = ssl.create_default_context()
        authority.configure_trust(context)
        if client_authority is not None:
            client_authority.issue_cert("client@example.org").configure_cert(context)
        return context

    return trust


def get(agent, path="/metrics", *, verify=True, **options):
    with httpx.Client(verify=verify, trust_env=False, timeout=60) as client:
        return client.get(agent.base + path, **options)


def basic(token):
    return {"authorization": f"Basic {base64.b64encode(token).decode()}"}


def test_tls(serve, tls, trust, tmp_path):
    """The agent says https, serves those who trust its authority, and has nothing for plain HTTP or old TLS."""
    agent = serve(tls_server_config=tls)
    assert agent.line.startswith("serving https://127.0.0.1:")
    assert "training_steps_total" in get(agent, verify=trust()).text
    assert get(agent, "/healthz", verify=trust()).text == "ok\n"
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        get(agent)
    with pytest.raises(httpx.TransportError):
        httpx.get(agent.base.replace("https", "http") + "/metrics", trust_env=False, timeout=60)
    assert agent.complaints == ""


def test_versions_of_tls(serve, tls, trust):
    """min_version refuses what is older."""
    agent = serve(tls_server_config={**tls, "min_version": "TLS13"})
    old = trust()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx.ConnectError):
        get(agent, verify=old)
    assert get(agent, verify=trust()).status_code == 200


def test_mutual_tls(serve, tls, trust, authority):
    """Where certificates are required, none and a stranger's get nothing, and one of the authority gets metrics."""
    mutual = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "tls/ca.crt"}
    agent = serve(tls_server_config={**tls, **mutual})
    for stranger in (None, trustme.CA()):
        with pytest.raises(httpx.TransportError):
            get(agent, verify=trust(stranger))
    assert "training_steps_total" in get(agent, verify=trust(authority)).text


def test_optional_client_certificates(serve, tls, trust, authority):
    """With VerifyClientCertIfGiven none is fine, and a stranger's is not."""
    optional = {"client_auth_type": "VerifyClientCertIfGiven", "client_ca_file": "tls/ca.crt"}
    agent = serve(tls_server_config={**tls, **optional})
    assert get(agent, verify=trust()).status_code == get(agent, verify=trust(authority)).status_code == 200
    with pytest.raises(httpx.TransportError):
        get(agent, verify=trust(trustme.CA()))


WRONG_CREDENTIALS = {
    "none": {},
    "wrong password": basic(b"prometheus:s3cret"),
    "no password": basic(b"prometheus:"),
    "wrong user": basic(b"nobody:s3cret: with colon"),
    "another user's": basic(b"ops:s3cret: with colon"),
    "no colon": basic(b"prometheus"),
    "a hash": basic(f"prometheus:{USERS['prometheus']}".encode()),
    "NUL": basic(b"prometheus:s3cret: with colon\0"),
    "no text": basic(b"\xff\xfe:x"),
    "no base64": {"authorization": "Basic ???"},
    "another scheme": {"authorization": "Bearer " + base64.b64encode(b"prometheus:s3cret: with colon").decode()},
    "empty": {"authorization": ""},
}


def test_right_credentials(serve):
    """Each user gets in with name and password, also one that htpasswd hashed and one as long as bcrypt reads."""
    agent = serve(basic_auth_users=USERS)
    for user in (RIGHT, ("ops", "other"), ("long", "x" * 72), ("long", "x" * 80)):
        for _ in range(2):
            assert "training_steps_total" in get(agent, auth=user).text
    assert agent.complaints == ""


def test_wrong_credentials_get_401_and_nothing_else(serve):
    """Whatever is wrong and whatever is asked for, the answer is the same few words."""
    agent = serve(basic_auth_users=USERS)
    assert get(agent, auth=RIGHT).status_code == 200
    expected = {"content-type", "content-length", "www-authenticate", "date"}
    for headers in WRONG_CREDENTIALS.values():
        for path in ("/metrics", "/", "/healthz", "/steps?run=job", "/no-such-page"):
            answer = get(agent, path, headers=headers)
            assert (answer.status_code, answer.text) == (401, "unauthorized\n")
            assert answer.headers["www-authenticate"] == 'Basic realm="rank-exporter"'
            assert set(answer.headers) == expected
    for method in ("POST", "HEAD", "OPTIONS", "DELETE"):
        assert agent.request(method, "/metrics").status_code == 401
    twice = [*basic(b"prometheus:s3cret: with colon").items()] * 2
    assert get(agent, headers=twice).status_code == 401
    assert agent.complaints == ""


def test_many_wrong_passwords_leave_those_who_are_known_alone(serve):
    """While strangers keep bcrypt busy, a client that was right before is answered without waiting for it."""
    agent = serve(basic_auth_users={"prometheus": bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()})
    assert get(agent, auth=("prometheus", "right")).status_code == 200
    strangers = []
    for number in range(40):
        connection = socket.create_connection(("127.0.0.1", agent.port))
        header = basic(f"prometheus:{number}".encode())["authorization"]
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: {header}\r\n\r\n".encode())
        strangers.append(connection)
    began = time.monotonic()
    assert get(agent, auth=("prometheus", "right")).status_code == 200
    waited = time.monotonic() - began
    answers = []
    for connection in strangers:
        connection.settimeout(60)
        answers.append(int(connection.recv(64).split()[1]))
        connection.close()
    took = time.monotonic() - began
    assert waited < took / 3
    assert {401, 503} == set(answers)


def test_unknown_names_take_as_long_as_wrong_passwords(serve):
    """How long a refusal takes does not tell whether there is such a user."""
    agent = serve(basic_auth_users={"prometheus": bcrypt.hashpw(b"right", bcrypt.gensalt(11)).decode()})

    def seconds(user):
        """Of the agent's CPU: what else the machine does is not in it."""
        before = sum(process.cpu_times()[:2])
        for _ in range(3):
            assert get(agent, auth=(user, "wrong")).status_code == 401
        return sum(process.cpu_times()[:2]) - before

    process = psutil.Process(agent.process.pid)
    seconds("warm-up")
    assert seconds("nobody") > seconds("prometheus") / 2


def test_users_are_read_anew(serve, write, eventually):
    """A user that is added or removed counts at the next request, with no restart."""
    agent = serve(basic_auth_users=USERS)
    assert get(agent, auth=RIGHT).status_code == 200
    write({"basic_auth_users": {"new": USERS["ops"]}})
    eventually(lambda: get(agent, auth=("new", "other")).status_code == 200)
    assert get(agent, auth=RIGHT).status_code == 401


def test_certificates_are_read_anew(serve, tls, reissue, trust, eventually):
    """A certificate that is replaced is shown to the next client."""
    agent = serve(tls_server_config=tls)

    def shown():
        with (
            socket.create_connection(("127.0.0.1", agent.port)) as plain,
            trust().wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            return wrapped.getpeercert()["serialNumber"]

    first = shown()
    assert shown() == first
    reissue()
    eventually(lambda: shown() != first)
    assert get(agent, verify=trust()).status_code == 200


@pytest.mark.parametrize(
    "content", ["{", "basic_auth_users: {ops: secret}", "tls_server_config: {cert_file: a, key_file: b}"]
)
def test_a_file_that_breaks_changes_nothing(serve, write, content, eventually):
    """When the file can no longer be used that is said once, and it stays in force as it was."""
    agent = serve(basic_auth_users=USERS)
    write(content)
    for _ in range(3):
        assert get(agent, auth=RIGHT).status_code == 200
        assert get(agent).status_code == 401
    eventually(lambda: agent.complaints)
    assert agent.complaints.count("\n") == 1
    assert "stays as it was: " in agent.complaints
    assert "secret" not in agent.complaints


@pytest.fixture
def guarded_agent(tls, start_agent, write, tmp_path):
    """Starts an agent that asks for certificate and password; returns the folder of its file_sd entry."""
    mutual = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "tls/ca.crt"}
    path = write({"tls_server_config": {**tls, **mutual}, "basic_auth_users": USERS})
    start_agent("--web-config-file", str(path), "--file-sd-dir", str(tmp_path / "sd"))
    return tmp_path / "sd"


@pytest.fixture
def scraped(tmp_path, eventually):
    """Starts Prometheus with a configuration of one target, and returns what it says of it after the first scrape."""
    processes = []

    def scrape(config):
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        command += [f"--storage.tsdb.path={tmp_path / 'tsdb'}", "--log.level=warn"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            environ = {**os.environ, "GOMAXPROCS": "1"}
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environ))

        def target():
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/targets", trust_env=False, timeout=60)
            found = answer.json()["data"]["activeTargets"] if answer.status_code == 200 else []
            return [one for one in found if one["health"] != "unknown"]

        (found,) = eventually(target)
        return found

    yield scrape
    for process in processes:
        process.terminate()
        process.wait(30)


def test_prometheus_scrapes_a_guarded_agent(guarded_agent, authority, scraped, tmp_path):
    """A real Prometheus with the authority, a client certificate and a password scrapes what file_sd tells it."""
    (entry,) = guarded_agent.iterdir()
    assert json.loads(entry.read_text())[0]["labels"] == {"__scheme__": "https"}
    client = authority.issue_cert("prometheus@example.org")
    client.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    files = {"cert_file": str(tmp_path / "client.pem"), "key_file": str(tmp_path / "client.pem")}
    config = {
        "scrape_configs": [
            {
                "job_name": "rank-exporter",
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "file_sd_configs": [{"files": [str(guarded_agent / "*.json")]}],
                "basic_auth": {"username": RIGHT[0], "password": RIGHT[1]},
                "tls_config": {"ca_file": str(tmp_path / "tls" / "ca.crt"), **files},
            }
        ]
    }
    found = scraped(config)
    assert (found["health"], found["lastError"]) == ("up", "")


HASH = "$2b$04$" + "a" * 53
PAIR = {"cert_file": "a.crt", "key_file": "a.key"}
WRONG = [
    ("{", "line 1, is no YAML: correct it"),
    ("[]", "the file of the web configuration is []: give keys and values"),
    ({"tls_config": {}}, "the file of the web configuration has 'tls_config', which is not supported: known are "),
    ({"tls_server_config": {"cert_file": "a"}}, "tls_server_config lacks cert_file or key_file: give both"),
    ({"tls_server_config": {**PAIR, "cert": "x"}}, "tls_server_config of the web configuration has 'cert'"),
    ({"tls_server_config": {**PAIR, "cert_file": 7}}, "tls_server_config.cert_file is 7: give a path"),
    ({"tls_server_config": {**PAIR, "cipher_suites": []}}, "has 'cipher_suites', which is not supported: known are"),
    ({"tls_server_config": {**PAIR, "min_version": "TLS10"}}, "min_version is 'TLS10': give one of TLS12, TLS13"),
    (
        {"tls_server_config": {**PAIR, "min_version": "TLS13", "max_version": "TLS12"}},
        "tls_server_config has a min_version above max_version: exchange them",
    ),
    (
        {"tls_server_config": {**PAIR, "client_auth_type": "RequestClientCert"}},
        "client_auth_type is 'RequestClientCert': give one of NoClientCert, VerifyClientCertIfGiven, RequireAnd",
    ),
    (
        {"tls_server_config": {**PAIR, "client_auth_type": "RequireAndVerifyClientCert"}},
        "asks for client certificates, but has no client_ca_file: give it",
    ),
    ({"tls_server_config": {**PAIR, "client_ca_file": "ca"}}, "but client_auth_type asks for no certificates: set it"),
    ({"basic_auth_users": ["me"]}, "basic_auth_users is ['me']: give names and bcrypt hashes"),
    ({"basic_auth_users": {"me": "hunter2"}}, "basic_auth_users.me is no bcrypt hash: make one with `htpasswd"),
    ({"basic_auth_users": {"a:b": HASH}}, "basic_auth_users has the user 'a:b': give a name without a colon"),
    ({"basic_auth_users": {7: HASH}}, "basic_auth_users has the user 7: give a name without a colon"),
    ({"http_server_config": {"http2": True}}, "http_server_config.http2 is set, but HTTP/1.1 alone is served"),
    ({"http_server_config": {"headers": {}}}, "http_server_config of the web configuration has 'headers'"),
    ({"rate_limit": {"burst": 1}}, "has 'rate_limit', which is not supported"),
]


@pytest.mark.parametrize(("content", "complaint"), WRONG, ids=[complaint for _, complaint in WRONG])
def test_a_wrong_file_is_refused(write, content, complaint):
    """What is wrong or not supported is named in one line, with what is allowed, and no password is repeated."""
    with pytest.raises(SettingError) as caught:
        load(write(content))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_empty_file_asks_for_nothing(write):
    """An empty file, and one that says no to HTTP/2, are plain HTTP for everybody."""
    for content in ("", "http_server_config: {http2: false}"):
        config = load(write(content))
        assert (config.tls, dict(config.users)) == (None, {})


def test_the_example_is_accepted(tls, tmp_path):
    """The example's paths are relative to it, and its hash is of the password that it says."""
    example = Path(__file__).parents[2] / "helm" / "examples" / "web-config.yml"
    (tmp_path / "web-config.yml").write_text(example.read_text())
    config = load(tmp_path / "web-config.yml")
    assert config.tls.context().verify_mode is ssl.CERT_REQUIRED
    assert bcrypt.checkpw(b"example", config.users["prometheus"])


def test_wrong_files_end_the_agent(run_agent, write, tls, tmp_path):
    """A file that is missing, wrong, or names certificates that are, ends the agent with exit code 2 and one line."""
    key = (tmp_path / "tls" / "tls.key").read_text()
    cases = [
        (str(tmp_path / "none.yml"), f"web_config_file is {tmp_path}/none.yml, and there is no such file"),
        (str(write({"basic_auth_users": {"me": "x"}})), "basic_auth_users.me is no bcrypt hash"),
    ]
    for path, complaint in cases:
        ended = run_agent("--web-config-file", path)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(f"Error: {complaint}")
        assert ended.stderr.count("\n") == 1
    for broken in ({"cert_file": "tls/none.crt"}, {"key_file": "tls/tls.crt"}, {"cert_file": "web-config.yml"}):
        ended = run_agent("--web-config-file", str(write({"tls_server_config": {**tls, **broken}})))
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith("Error: cert_file ")
        assert ended.stderr.count("\n") == 1
        assert key.splitlines()[1] not in ended.stderr


def test_the_file_comes_from_the_environment(run_agent, tmp_path):
    """RANK_EXPORTER_WEB_CONFIG_FILE names the file, too."""
    ended = run_agent(RANK_EXPORTER_WEB_CONFIG_FILE=str(tmp_path / "none.yml"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "none.yml, and there is no such file" in ended.stderr


def test_users_without_bcrypt(run_agent, write, tmp_path):
    """Where bcrypt is not installed users are refused at the start, with the command that installs it."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "bcrypt.py").write_text("raise ImportError\n")
    ended = run_agent(
        "--web-config-file", str(write({"basic_auth_users": USERS})), PYTHONPATH=str(tmp_path / "modules")
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Error: basic_auth_users need bcrypt, which is not installed: pip install")
    assert ended.stderr.count("\n") == 1


RANK = "import sys, rank_exporter; exporter = rank_exporter.start(run='job'); sys.stdin.read(); exporter.stop()"


@pytest.fixture
def guarded_rank(write, tls, directory, tmp_path):
    """A training process with a web configuration, and the folder of its agent's file_sd entry."""
    write({"tls_server_config": tls})
    settings = {"DIR": directory, "PORT": 0, "LISTEN_ADDRESS": "127.0.0.1", "LINGER_SECONDS": 0, "FILE_SD_DIR": "sd"}
    environ = {f"RANK_EXPORTER_{name}": str(value) for name, value in settings.items()}
    environ = {**os.environ, **environ, "RANK_EXPORTER_WEB_CONFIG_FILE": "web-config.yml"}
    rank = subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE, cwd=tmp_path, env=environ)
    return rank, tmp_path / "sd"


def test_ranks_hand_the_file_to_their_agent(guarded_rank, processes, eventually):
    """The agent that a rank starts has the web configuration, also where its path is relative to the rank's folder."""
    rank, folder = guarded_rank
    with rank:
        (entry,) = eventually(lambda: list(folder.glob("*.json")))
        assert json.loads(entry.read_text())[0]["labels"] == {"__scheme__": "https"}
        rank.stdin.close()
        assert rank.wait(60) == 0
    # Only then nothing of it is left, which the directory's fixture looks for.
    eventually(lambda: not entry.exists())
    eventually(lambda: not processes())
