"""A program on a pseudo-terminal, used as a person would use it."""

import os
import pty
import re
import select
import time


class Session:
    def __init__(self, program, *arguments):
        self.seen = ""
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "xterm"
            os.execv(program, [program, *arguments])

    def type(self, text):
        self.seen = ""
        os.write(self.terminal, text.encode())

    def expect(self, pattern, timeout_s=300):
        """Reads until the pattern turns up in what came since the last typing."""
        end = time.monotonic() + timeout_s
        while not (match := re.search(pattern, self.seen)):
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.terminal], [], [], left)[0]:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        return match


# What a line editor drops is what is typed before it is ready, so every step waits for the next prompt.
PROMPT = r"\n[^\n]*> "
ANSWERED = r"(\d+) prompt tokens(.|\n)*generated, [\d.]+ tokens/s(.|\n)*> "
