"""Couriers in this process, for tests of Flower's engine: every parcel is made into bytes and back."""

import json

from fedsurf.network.engines.flower.parcels import Item, Parcel


def through_bytes(parcel):
    """Return a parcel as it arrives elsewhere."""
    head = {
        "items": [[place, item.kind, list(item.shape)] for place, item in parcel.items.items()],
        "want": parcel.want,
        "note": parcel.note,
    }
    sent = json.dumps(head).encode(), [bytes(item.raw) for item in parcel.items.values()]
    head = json.loads(sent[0])
    items = {
        place: Item(kind, tuple(shape), raw)
        for (place, kind, shape), raw in zip(head["items"], sent[1], strict=True)
    }
    return Parcel(items, head["want"], head["note"])


class LocalCourier:
    """Hands parcels to functions that answer as the agents; some messages or replies get lost.

    `lost(agent, count)` says what happens to an agent's parcel of that number: None, "parcel" or "reply".
    """

    def __init__(self, agents, lost=None):
        self.agents, self.lost = agents, lost or (lambda *_: None)
        self.names = {number: f"site-{number}" for number in range(len(agents))}
        self.counts = [0] * len(agents)

    def deliver(self, parcels, *_, **__):
        replies, why = {}, {}
        for agent, parcel in parcels.items():
            fate = self.lost(agent, self.counts[agent])
            self.counts[agent] += 1
            if fate == "parcel":
                why[agent] = "late"
                continue
            reply = through_bytes(self.agents[agent](through_bytes(parcel)))
            if fate == "reply":
                why[agent] = "late"
            else:
                replies[agent] = reply
        return replies, why
