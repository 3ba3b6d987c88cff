"""The simulated server by itself."""

from __future__ import annotations

from tests.simulation.world.server.server import Server

ECHO = b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n"


def _answers(*parts: bytes) -> bytes:
    out: list[bytes] = []
    server = Server(lambda: 1_000_000, run_id="0" * 40, version="7.2.0")
    client = server.connect(out.append, lambda: None, "here:1")
    for part in parts:
        server.feed(client, part)
    return b"".join(out)


def test_a_request_may_come_in_two_parts_wherever_it_is_cut() -> None:
    """Also after a word: the reader has nothing left over then, though the request has not ended."""
    whole = 2 * ECHO
    for cut in range(1, len(whole)):
        assert _answers(whole[:cut], whole[cut:]) == 2 * b"$5\r\nhello\r\n"


def test_what_is_typed_is_a_request() -> None:
    assert _answers(b"ECHO hello\r\n") == b"$5\r\nhello\r\n"
