"""HTTP as a client sees it, close enough to the socket to hang up, to read slowly and to notice silence."""

import http.client
import json
import time

# A request is stuck if nothing of its answer comes for so long.
SILENCE_MAX_S = 60
LAST_TYPES = {"message_stop", "response.completed", "response.incomplete", "response.failed", "error"}


class Stuck(Exception):
    """Nothing came for `SILENCE_MAX_S`."""


class Answer:
    """What came back. `body` is JSON where it is that, otherwise text; of a stream, `events` has what was sent."""

    def __init__(self, status, headers, body=None, events=None, is_complete=True):
        self.status = status
        self.headers = headers
        self.body = body
        self.events = events if events is not None else []
        self.is_complete = is_complete

    @property
    def error(self):
        """The error of a refused request or of a stream that failed midway; empty if there is none."""
        for candidate in [self.body, *self.events[-2:]]:
            if isinstance(candidate, dict) and isinstance(candidate.get("error"), dict):
                return candidate["error"]
        return {}

    @property
    def retry_after(self):
        return self.headers.get("retry-after")


class Client:
    """Sends requests of one caller. Every request has a connection of its own unless `keep` is set."""

    def __init__(self, address, key=None, keep=False):
        self.address, self.key, self.keep = address, key, keep
        self.connection = None

    def connect(self):
        if self.connection is None:
            host, port = self.address
            self.connection = http.client.HTTPConnection(host, port, timeout=SILENCE_MAX_S)
            self.connection.connect()
        return self.connection

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def headers(self):
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        if not self.keep:
            headers["connection"] = "close"
        return headers

    def send(self, method, path, body=None):
        """Sends a request and leaves its answer to be read."""
        connection = self.connect()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, self.headers())
        return connection

    def ask(self, method, path, body=None):
        """The whole answer."""
        try:
            response = self.send(method, path, body).getresponse()
            if response.headers.get_content_type() == "text/event-stream":
                return self.read_events(response)
            text = response.read().decode("utf-8", "replace")
            return Answer(response.status, response.headers, parsed(text))
        except TimeoutError as error:
            raise Stuck(f"{method} {path}") from error
        finally:
            if not self.keep:
                self.close()

    def read_events(self, response, events_max=None, pause_s=0.0):
        """Reads a stream to its end, or its first events; slowly, if there is to be a pause after each."""
        events, data_at = [], time.monotonic()
        while line := response.readline():
            if line.startswith(b"data:"):
                data_at = time.monotonic()
                events.append(parsed(line[5:].strip().decode("utf-8", "replace")))
                if events_max is not None and len(events) >= events_max:
                    return Answer(response.status, response.headers, events=events, is_complete=False)
                time.sleep(pause_s)
            elif time.monotonic() - data_at > SILENCE_MAX_S:
                # Comments keep a connection alive; they are no answer.
                raise Stuck("a stream sent comments only")
        if not events or not is_last(events[-1]):
            # A connection that breaks looks like an end to the library.
            raise http.client.IncompleteRead(b"", None)
        return Answer(response.status, response.headers, events=events)


def is_last(event):
    """Whether a stream may end with this event; each API has its own."""
    if isinstance(event, dict):
        return "error" in event or event.get("type") in LAST_TYPES
    return event == "[DONE]"


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text
