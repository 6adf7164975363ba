"""rtnetlink in pyroute2's words, for what isn't hot: links, addresses and rules to change. Its only user.

pyroute2 writes and reads the messages; its sockets, each with an event loop, take thirty times as long as ours. It
drops keywords that it doesn't know, so nothing is passed through: a request names all that it means, and ``Channel``
sends just that. Attributes carry the names of pyroute2's tables (FRA_*, IFA_*, IFLA_*), which are those of the kernel's
headers.

pyroute2 is imported with the first request: it takes 130 ms, and brings asyncio.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.kernel.rtnetlink.messages import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["Channel", "Message", "channel", "read", "rtnl"]

T = TypeVar("T")


class Message(Protocol):
    """What is read of a decoded message; pyroute2's ``nlmsg`` and ``nla`` meet it."""

    def __getitem__(self, field: str, /) -> Any:
        """A field of the fixed header."""

    def get_attr(self, attribute: str, /) -> Any:
        """The value of an attribute, or None."""


@cache
def _message_classes() -> dict[int, Any]:
    from pyroute2.netlink.rtnl.fibmsg import fibmsg
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    class LinkMessage(ifinfmsg):  # type: ignore[misc]  # pyroute2 has no types
        # A hardware address has six bytes on Ethernet only.
        nla_map = (*((number, *row) for number, row in enumerate(ifinfmsg.nla_map)), (1, "IFLA_ADDRESS", "cdata"))

    # A class inherits the compiled table of its parent, if that was used before.
    LinkMessage().compile_nla_table()
    families = (
        (LinkMessage, (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK, rtnl.RTM_GETLINK)),
        (ifaddrmsg, (rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR)),
        (fibmsg, (rtnl.RTM_NEWRULE, rtnl.RTM_DELRULE)),
    )
    return {kind: message_class for message_class, kinds in families for kind in kinds}


class Channel(Conversation):
    """An rtnetlink socket, for one batch of requests in one thread; ``close`` it there."""

    def request(
        self, kind: int, flags: int, fields: Mapping[str, int], *attributes: tuple[str, object]
    ) -> tuple[Message, ...]:
        """Send one request and return the messages of the answer; a change has none.

        Args:
            kind: RTM_*.
            flags: NLM_F_*.
            fields: of the fixed header; those that aren't named are zero.
            attributes: (name, value); nested ones as ``{"attrs": [...]}``.

        Raises:
            RefusedError: the kernel refused, or the socket failed.
            AgainError: a list changed while it was read, or an answer got lost.
        """
        message_class = _message_classes()[kind]

        def pack(flags: int, sequence: int) -> bytes:
            message = message_class()
            message.update({name: 0 for name, _ in message.fields})
            message.update(fields)
            message["attrs"] = list(attributes)
            message["header"].update(type=kind, flags=flags, sequence_number=sequence)
            message.encode()
            return bytes(message.data)

        def unpack(answer: bytes | rtnl.RefusedError) -> Message:
            if isinstance(answer, rtnl.RefusedError):
                raise answer
            message: Any = message_class(answer)
            message.decode()
            return cast("Message", message)

        if not rtnl.is_read(kind):
            for refusal in self.change([flags], pack).values():
                raise refusal
            return ()
        if flags == rtnl.DUMP:
            answers: Iterable[bytes | rtnl.RefusedError] = self.messages(kind, pack(flags, 0)[HEADER_BYTES:])
        else:
            ((_, answers),) = self.ask([flags], pack)
        return tuple(map(unpack, answers))


@contextmanager
def channel(attempt: str) -> Iterator[Channel]:
    """A channel for an attempt ("add the link eth0"), which is told of if it fails.

    Raises:
        RouteError: no socket can be opened, the kernel refuses, or this thread runs an asyncio event loop.
    """
    rtnl.refuse_running_loop(attempt)
    with rtnl.told(attempt), closing(Channel()) as opened:
        yield opened


def read(attempt: str, ask: Callable[[Channel], T]) -> T:
    """Read until an answer can be relied upon.

    Args:
        attempt: in words, "list the interfaces".
        ask: reads; called anew if what it read changed meanwhile.

    Raises:
        RouteError: as ``channel``, or it changes whenever it is read.
    """

    def once() -> T:
        with channel(attempt) as opened:
            return ask(opened)

    return rtnl.until_sure(attempt, once)
