"""Send requests through pyroute2 for changes that aren't frequent, such as changes of links, addresses and rules.

pyroute2 encodes and decodes the messages. Its sockets aren't used, because each has an event loop and takes thirty
times as long as ours. pyroute2 drops keywords that it doesn't know, so we don't pass any to it. A request names all of
its fields and attributes, and exactly these are sent. The attributes have the names in the tables of pyroute2 (FRA_*,
IFA_*, IFLA_*), which are the same as in the kernel's headers.

pyroute2 is imported for the first request, because the import takes 130 ms and loads asyncio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation


@cache
def _message_classes() -> dict[int, Any]:
    from pyroute2.netlink.rtnl.fibmsg import fibmsg
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    class LinkMessage(ifinfmsg):  # type: ignore[misc]  # pyroute2 has no types
        # A hardware address has six bytes only on Ethernet.
        nla_map = (*((number, *row) for number, row in enumerate(ifinfmsg.nla_map)), (1, "IFLA_ADDRESS", "cdata"))

    # If the parent class was used before, this class would inherit its compiled table.
    LinkMessage().compile_nla_table()
    families = (
        (LinkMessage, (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK, rtnl.RTM_GETLINK)),
        (ifaddrmsg, (rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR)),
        (fibmsg, (rtnl.RTM_NEWRULE, rtnl.RTM_DELRULE)),
    )
    return {kind: message_class for message_class, kinds in families for kind in kinds}


def request(
    talk: Conversation, kind: int, flags: int, fields: Mapping[str, int], *attributes: tuple[str, object]
) -> tuple[Any, ...]:
    """Send one request and return the messages of the answer, or none for a change.

    Args:
        talk: the conversation with the kernel.
        kind: the kind of the request, RTM_*.
        flags: the flags, NLM_F_*.
        fields: the fields of the fixed header. Other fields are zero.
        attributes: pairs of a name and a value. Nested attributes have the form ``{"attrs": [...]}``.

    Returns:
        The messages as pyroute2 objects. ``message[field]`` is a field of the fixed header, and
        ``message.get_attr(name)`` is an attribute or None.

    Raises:
        NetlinkError: the kernel refused, or the socket failed.
        DumpInterrupted: a list changed while it was read, or an answer was lost.
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

    def unpack(answer: bytes | NetlinkError) -> Any:
        if isinstance(answer, NetlinkError):
            raise answer
        message = message_class(answer)
        message.decode()
        return message

    if not rtnl.is_read(kind):
        for _, refusal in talk.change([flags], pack):
            raise refusal
        return ()
    if flags == rtnl.DUMP:
        answers: Iterable[bytes | NetlinkError] = talk.messages(kind, pack(flags, 0)[rtnl.HEADER_BYTES :])
    else:
        ((_, answers),) = talk.ask([flags], pack)
    return tuple(map(unpack, answers))
