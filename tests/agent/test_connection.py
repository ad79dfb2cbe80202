"""Clients that connect and do not ask, ask slowly, or do not listen, against a real agent that others ask."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import time

import httpx
import pytest
import trustme
import uvicorn
import yaml

from rank_exporter.agent import connection
from rank_exporter.agent.connection import MOST_WAITING, REQUEST_SECONDS, Connection

MANY = 3 * MOST_WAITING


@pytest.fixture
def connect():
    """Connects to a port on loopback; connections are closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def connect(port, *, receive_buffer=None):
            sock = stack.enter_context(socket.socket())
            if receive_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.settimeout(30)
            sock.connect(("127.0.0.1", port))
            return sock

        yield connect


def closed_by_peer(sock):
    """Waits for the end of a connection and returns whatever came before it."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            received += chunk
    return received


def ask_anew(agent):
    """A scrape on a connection of its own, as after a restart of Prometheus."""
    answer = httpx.get(agent.url, trust_env=False, timeout=60)
    assert answer.status_code == 200
    return answer.text


def test_silent_clients_do_not_stop_scrapes(start_agent, start_rank, connect):
    """With hundreds of connections that say nothing scrapes are answered at once, old and new clients alike."""
    start_rank()
    agent = start_agent()
    agent.scrape()
    silent = [connect(agent.port) for _ in range(MANY)]
    began = time.monotonic()
    for sock in silent[: MANY - MOST_WAITING]:
        assert closed_by_peer(sock) == b""
    assert time.monotonic() - began < REQUEST_SECONDS / 2, "they gave way, rather than have their time run out"
    for _ in range(5):
        assert "training_steps_total" in ask_anew(agent)
        assert agent.scrape().ranks() == {"0"}
    assert agent.complaints == ""


def test_a_request_has_to_come_in_time(start_agent, connect):
    """Whoever says nothing, or sends a request byte by byte, is cut off once the time for a request is over."""
    agent = start_agent()
    began = time.monotonic()
    silent, slow, second = (connect(agent.port) for _ in range(3))
    second.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"ok\n"):
        answer += second.recv(4096)
    second.sendall(b"GET /healthz HTTP/1.1\r\nHo")
    words = iter(b"GET /metrics HTTP/1.1\r\nHost: " + b"x" * 1000)
    slow.settimeout(0.5)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < began + 2 * REQUEST_SECONDS:
            slow.sendall(bytes([next(words)]))
            with contextlib.suppress(TimeoutError):
                if slow.recv(1) == b"":
                    break
    assert REQUEST_SECONDS - 1 < time.monotonic() - began < REQUEST_SECONDS + 5
    assert closed_by_peer(silent) == closed_by_peer(second) == b""
    assert time.monotonic() - began < REQUEST_SECONDS + 5


def test_slow_requests_do_not_stop_scrapes(start_agent, start_rank, connect):
    """Half a request is no better than none."""
    start_rank()
    agent = start_agent()
    for _ in range(MANY):
        connect(agent.port).sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    assert "training_steps_total" in ask_anew(agent)


def test_readers_that_do_not_read_do_not_stop_scrapes(start_agent, record, connect):
    """Clients that ask for much and take none of it give way to those that take it."""
    for rank in range(12):
        recorder = record(rank, world_size=12)
        for step in range(1, 60):
            recorder.step(input_ready=step**4 * 1000, forward=step**4 * 900, step=step**4 * 2000)
    agent = start_agent()
    whole = ask_anew(agent)
    assert len(whole) > 100_000
    for _ in range(MOST_WAITING + 16):
        sock = connect(agent.port, receive_buffer=2048)
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
    for _ in range(3):
        assert ask_anew(agent).count("training_steps_total") == whole.count("training_steps_total")


def test_large_requests_are_refused(start_agent, connect):
    """A request whose headers do not end is cut off, long before it is large."""
    agent = start_agent()
    sock = connect(agent.port)
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            sock.sendall(b"X: " + b"x" * 8000 + b"\r\n" if _ else b"GET /metrics HTTP/1.1\r\n")
    received = closed_by_peer(sock)
    assert received == b"" or received.startswith(b"HTTP/1.1 400 ")
    assert agent.get("/healthz").text == "ok\n"


def test_bodies_are_not_waited_for(start_agent, start_rank, connect):
    """A request is answered whatever body it announces, and the rest of the body is not waited for beyond the limit."""
    start_rank()
    agent = start_agent()
    sock = connect(agent.port)
    sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nx")
    assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
    with contextlib.suppress(ConnectionError):
        sock.sendall(b"x" * 1_000_000)
    assert "training_steps_total" in ask_anew(agent)


def test_silent_handshakes_do_not_stop_scrapes(start_agent, start_rank, connect, tmp_path):
    """With TLS, clients that do not even begin the handshake are cut off, and do not keep others waiting."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "tls.pem")
    pair = {"cert_file": "tls.pem", "key_file": "tls.pem"}
    (tmp_path / "web-config.yml").write_text(yaml.safe_dump({"tls_server_config": pair}))
    start_rank()
    agent = start_agent("--web-config-file", str(tmp_path / "web-config.yml"))
    began = time.monotonic()
    silent = [connect(agent.port) for _ in range(MANY)]
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for _ in range(3):
        assert "training_steps_total" in httpx.get(agent.url, verify=context, trust_env=False, timeout=60).text
    for sock in silent:
        assert closed_by_peer(sock) == b""
    assert time.monotonic() - began < 15


@contextlib.asynccontextmanager
async def serve_app(app, keep_alive=30):
    """Serves an application through Connection; yields the server and its port."""
    config = uvicorn.Config(
        app, http=functools.partial(Connection), lifespan="off", log_config=None, timeout_keep_alive=keep_alive
    )
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield server, listener.getsockname()[1]
        server.should_exit = True
        await task


def serve(*chunks, keep_alive=30):
    """Serves an answer of these chunks."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for left, chunk in enumerate(chunks, start=1 - len(chunks)):
            await send({"type": "http.response.body", "body": chunk, "more_body": left < 0})

    return serve_app(app, keep_alive)


@pytest.mark.parametrize(
    ("chunks", "limits"),
    [([b"x" * 50_000_000], ["IDLE_SECONDS", "_FLUSH_SECONDS"]), ([b"x" * 100_000] * 500, ["RESPONSE_SECONDS"])],
    ids=["at once", "in parts"],
)
def test_an_answer_has_to_be_taken_in_time(monkeypatch, chunks, limits):
    """A client that stops reading in the middle of an answer is cut off once the time for it is over."""
    for name in limits:
        monkeypatch.setattr(connection, name, 0.5)

    async def play():
        async with serve(*chunks, keep_alive=0.5) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.read(12)) == b"HTTP/1.1 200"
            assert len(server.server_state.connections) == 1
            deadline = time.monotonic() + 120
            while server.server_state.connections:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            writer.transport.abort()

    asyncio.run(play())


def test_an_idle_client_is_left_alone_until_its_time_is_over(monkeypatch):
    """Between two requests a client may be silent for longer than a request may take, and then ask again."""
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.2)

    async def play():
        async with serve(b"hello") as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"hello" in await reader.readuntil(b"0\r\n\r\n")
                await asyncio.sleep(0.5)  # longer than a request may take: the point of the test
            writer.close()

    asyncio.run(play())


def test_too_many_requests_at_once_get_503(monkeypatch):
    """Beyond the limit a request is refused at once, and taken again as soon as one of the others is answered."""
    monkeypatch.setattr(connection, "MOST_ANSWERING", 2)

    async def play():
        turn = asyncio.Event()

        async def app(scope, receive, send):
            await turn.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async with serve_app(app) as (server, port):

            async def ask():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                return answer[:12]

            first = [asyncio.create_task(ask()) for _ in range(2)]
            while len(server.server_state.tasks) < 2:
                await asyncio.sleep(0.01)
            assert await ask() == b"HTTP/1.1 503"
            turn.set()
            assert [await task for task in first] == [b"HTTP/1.1 200"] * 2
            assert await ask() == b"HTTP/1.1 200"

    asyncio.run(play())
