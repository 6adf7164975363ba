"""Send datagrams between named namespaces that echo them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from socketserver import BaseRequestHandler, UDPServer
from typing import Protocol, TypeVar

import attrs
from node import until

T = TypeVar("T")

PORT = 5353
PATIENCE_SECONDS = 5.0
LOST_AFTER_SECONDS = 0.1


class Runner(Protocol):
    """A callable that runs a function in another thread and returns its result or raises its exception."""

    def __call__(self, function: Callable[[], T], /) -> T: ...


@attrs.frozen
class Place:
    """A named namespace that sends and answers datagrams.

    Args:
        name: the name in its answers.
        run: a callable that runs a function in the namespace.
    """

    name: str
    run: Runner


@contextmanager
def asking(source: Place, address: str) -> Iterator[Callable[[float], str | None]]:
    """Open a socket, and yield a function that sends a datagram and returns the name of the responder."""
    client = source.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    numbers = count()

    def ask(patience: float) -> str | None:
        question = str(next(numbers)).encode()
        deadline = time.monotonic() + patience
        try:
            client.sendto(question, (address, PORT))
            while (left := deadline - time.monotonic()) > 0:
                client.settimeout(left)
                number, _, name = client.recv(64).partition(b" ")
                if number == question:
                    return name.decode()
        except OSError:  # the time is up, or the host found that no machine has this address
            pass
        return None

    with client:
        yield ask


def answer(source: Place, address: str, *, patience: float = PATIENCE_SECONDS) -> str | None:
    """Return the name of the responder to a datagram, or None after ``patience`` seconds."""
    with asking(source, address) as ask:
        return ask(patience)


def loses(source: Place, address: str) -> bool:
    """Return whether a datagram to an address gets no reply."""
    return answer(source, address, patience=LOST_AFTER_SECONDS) is None


class Customers:
    """A thread that sends datagrams between namespaces in a loop and records those that get no reply.

    A single thread serves them all because more threads would take CPU time away from the code under test.

    Args:
        pairs: source, destination address, and name of the expected responder.
    """

    def __init__(self, *pairs: tuple[Place, str, str]) -> None:
        self.lost: list[str] = []
        self._served = dict.fromkeys(pairs, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Customers:
        self._thread.start()
        self.await_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def await_more(self, exchanges: int = 5) -> None:
        """Wait until each pair has had this many more replies or has lost a datagram."""
        aims = {pair: served + exchanges for pair, served in self._served.items()}
        until(lambda: bool(self.lost) or all(self._served[pair] >= aim for pair, aim in aims.items()))

    def _ask(self) -> None:
        with ExitStack() as opened:
            asks = {pair: opened.enter_context(asking(*pair[:2])) for pair in self._served}
            while not self._stop.is_set():
                for pair, ask in asks.items():
                    source, address, expected = pair
                    if (answered := ask(PATIENCE_SECONDS)) == expected:
                        self._served[pair] += 1
                    else:
                        self.lost.append(f"{source.name} -> {address}: {answered}")


class Echo:
    """UDP servers that reply with the datagram's payload and the name of their namespace."""

    def __init__(self) -> None:
        self._servers: list[UDPServer] = []

    def listen(self, name: str, address: str = "") -> None:
        """Answer in the calling thread's namespace."""

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                question, server = self.request
                with suppress(OSError):  # there is no route back; the client will time out
                    server.sendto(question + b" " + name.encode(), self.client_address)

        server = UDPServer((address, PORT), Handler)
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        self._servers.append(server)

    def close(self) -> None:
        """Stop answering."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
