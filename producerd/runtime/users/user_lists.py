"""UserLists: who may open which stream, by the settings.

A table's list of users holds for the stream in Kinesis to which the table leads, whatever name a client uses.  Where
several tables with lists lead to one stream, each of their names goes by its own list.
"""

from __future__ import annotations

from typing import NamedTuple

from producerd.config.settings import STREAM_NAME, Config, NodeSettings, StreamSettings


class Destination(NamedTuple):
    """The stream in Kinesis to which a name leads.  None is what the settings do not tell."""

    name: str
    region: str | None
    account: str | None

    def may_be(self, other: Destination) -> bool:
        """Return whether both may be the same stream, if both have the same name.

        An endpoint proves nothing, as a stream may have several.
        """
        places = ((self.region, other.region), (self.account, other.account))
        return all(None in place or place[0] == place[1] for place in places)


class UserLists:
    """The lists of users of one configuration.  Each question looks only at tables of the same stream's name."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lists: dict[str, list[tuple[str, Destination, frozenset[int]]]] = {}  # by the stream's name in Kinesis
        for table, settings in config.streams.items():
            if settings.allowed_uids:
                leads_to = destination_of(table, config.node, settings)
                self._lists.setdefault(leads_to.name, []).append((table, leads_to, settings.allowed_uids))

    def why_not(self, name: str, uid: int | None) -> str | None:
        """Return why a user may not open the stream that clients know as ``name``, or None if the user may."""
        config, settings = self._config, self._config.stream(name)
        if config.node.streams_allowed == "listed" and name not in config.streams and STREAM_NAME.fullmatch(name):
            return f'the daemon takes listed streams only, and {name} is not: add [streams."{name}"]'
        refused = f"user id {uid} may not write to {name}:"
        if settings.allowed_uids and uid not in settings.allowed_uids:
            return f'{refused} it is not in allowed_uids of [streams."{name}"]'
        if settings.allowed_uids in (frozenset(), config.defaults.allowed_uids):  # the name has no list of its own
            leads_to = destination_of(name, config.node, settings)
            for table, other, allowed in self._lists.get(leads_to.name, ()):
                if uid not in allowed and leads_to.may_be(other):
                    return f'{refused} it is not in allowed_uids of [streams."{table}"], which may be the same stream'
        return None


def destination_of(name: str, node: NodeSettings, settings: StreamSettings) -> Destination:
    """Return the stream to which the name of a stream with these settings leads.

    A name leads to a stream of the account whose role the daemon assumes.  Which account the daemon's own credentials
    belong to is not known.
    """
    if settings.stream_arn is not None:
        _, _, _, region, account, resource = settings.stream_arn.split(":")
        return Destination(resource.removeprefix("stream/"), region, account)
    role = settings.role_arn or node.role_arn
    return Destination(settings.stream_name or name, settings.region or node.region, role and role.split(":")[4])
