"""Where hosts of a kind are created: providers and regions in the order of trying."""

import msgspec

from core.errors import InvalidRequest

ANY = "*"
SETTING = "PENSTOCK_HOST_PLACES"


class Place(msgspec.Struct, frozen=True):
    """A region of a provider."""

    provider: str
    region: str


class Places(msgspec.Struct, frozen=True):
    """The places by kind of host; those of `*` are for kinds that are not named."""

    by_kind: dict[str, tuple[Place, ...]] = {}

    def of(self, kind: str) -> tuple[Place, ...]:
        """Where hosts of a kind may be created; empty = nowhere."""
        return self.by_kind.get(kind, self.by_kind.get(ANY, ()))


def parse_places(text: str) -> Places:
    """`KIND=PROVIDER/REGION,PROVIDER/REGION;KIND=...`, with `*` for any other kind. Raises InvalidRequest."""
    found: dict[str, tuple[Place, ...]] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        kind, _, listed = (each.strip() for each in part.partition("="))
        pairs = [each.strip().partition("/") for each in listed.split(",")]
        if not kind or kind in found or not all(provider and region for provider, _, region in pairs):
            raise InvalidRequest(
                f"{SETTING} has {part!r}; write KIND=PROVIDER/REGION,PROVIDER/REGION once for each kind, such as "
                "*=digitalocean/nyc2,digitalocean/tor1"
            )
        found[kind] = tuple(Place(provider, region) for provider, _, region in pairs)
    return Places(found)
