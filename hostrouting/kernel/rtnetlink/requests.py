"""Use pyroute2 for infrequent requests, such as changes to links, addresses and rules.

pyroute2 encodes and decodes the messages. Its sockets aren't used, because each runs an event loop and is thirty times
slower than ours. pyroute2 silently drops unknown keywords, so we don't pass any. Each request specifies all of its
fields and attributes, and exactly these are sent. The attribute names are those used by pyroute2 and the kernel headers
(FRA_*, IFA_*, IFLA_*).

pyroute2 is imported lazily, because the import takes 130 ms and loads asyncio.
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
        # Hardware addresses have six bytes only on Ethernet.
        nla_map = (*((number, *row) for number, row in enumerate(ifinfmsg.nla_map)), (1, "IFLA_ADDRESS", "cdata"))

    # Otherwise, this class would inherit its parent's compiled table if the parent was used before.
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
    """Send one request and return the reply messages, or an empty tuple for a change.

    Args:
        talk: the conversation with the kernel.
        kind: the message type, RTM_*.
        flags: the flags, NLM_F_*.
        fields: values for fields of the fixed header. Other fields are zero.
        attributes: (name, value) pairs. Nested attributes have the form ``{"attrs": [...]}``.

    Returns:
        The messages as pyroute2 objects. ``message[field]`` is a field of the fixed header, and
        ``message.get_attr(name)`` is an attribute or None.

    Raises:
        NetlinkError: the kernel returned an error, or the socket failed.
        DumpInterrupted: the data changed during a dump, or a reply was lost.
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
        answers = (answer for _, answer in talk.ask([flags], pack))
    return tuple(map(unpack, answers))
