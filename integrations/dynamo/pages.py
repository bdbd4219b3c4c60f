"""Tells Dynamo which pages a server has cached, from the server's KV events: also those from before somebody listened.

Dynamo drops a page whose predecessor it does not know, so one message that was missed would hide all that follows it. A gap in the
numbers of messages is filled by asking for those that are missing.
"""

import threading

import msgspec
import zmq

END = b"\xff" * 8
# Between looks at whether to end.
LOOK_MS = 200
# For a server that has nothing to send again any more.
ANSWER_MS = 10_000


class Pages:
    def __init__(self, events, replay):
        self.events, self.replay = events, replay
        self.known, self.expected = set(), 0
        self.ended, self.thread = threading.Event(), None

    def follow(self, publisher):
        self.thread = threading.Thread(target=self.run, args=(publisher,), name="kv-events", daemon=True)
        self.thread.start()

    def end(self):
        self.ended.set()
        if self.thread:
            self.thread.join()

    def run(self, publisher):
        with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
            subscriber.subscribe(b"")
            subscriber.connect(self.events)
            self.catch_up(context, publisher)
            while not self.ended.is_set():
                if subscriber.poll(LOOK_MS):
                    _, number, payload = subscriber.recv_multipart()
                    if int.from_bytes(number, "big") > self.expected:
                        self.catch_up(context, publisher)
                    self.take(number, payload, publisher)

    def catch_up(self, context, publisher):
        """Asks for the messages from the next one on, as far back as the server has them."""
        with context.socket(zmq.DEALER) as asking:
            asking.linger = 0
            asking.connect(self.replay)
            asking.send_multipart([b"", self.expected.to_bytes(8, "big")])
            while asking.poll(ANSWER_MS):
                *_, number, payload = asking.recv_multipart()
                if number == END:
                    break
                self.take(number, payload, publisher)

    def take(self, number, payload, publisher):
        number = int.from_bytes(number, "big")
        if number < self.expected:
            return
        self.expected = number + 1
        for event in msgspec.msgpack.decode(payload)[1]:
            self.tell(event, publisher)

    def tell(self, event, publisher):
        kind, pages = event["type"], [signed(page) for page in event.get("block_hashes", [])]
        if kind == "BlockStored":
            parent = event["parent_block_hash"]
            size = event["block_size"]
            parent = None if parent is None else signed(parent)
            publisher.publish_stored(event["token_ids"], [size] * len(pages), pages, parent, lora_name=event.get("lora_name"))
            self.known.update(pages)
            return
        if kind == "AllBlocksCleared":
            pages = list(self.known)
        if pages:
            publisher.publish_removed(pages)
            self.known.difference_update(pages)


def signed(page):
    return page - (1 << 64) if page >= 1 << 63 else page
