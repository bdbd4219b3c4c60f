"""Chats with `ruvllm run` on a pseudo-terminal, as a person would, and fails if it does not behave.

    python3 chat_session.py <path of ruvllm>
"""

import os
import pty
import re
import select
import sys
import time


class Session:
    def __init__(self, program):
        self.seen = ""
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "xterm"
            os.execv(program, [program, "run", "smollm2", "--temperature", "0", "--max-tokens", "6000"])

    def type(self, text):
        self.seen = ""
        os.write(self.terminal, text.encode())

    def expect(self, pattern, timeout_s=90):
        """Reads until the pattern turns up in what came since the last typing."""
        end = time.monotonic() + timeout_s
        while not re.search(pattern, self.seen):
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.terminal], [], [], left)[0]:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")


# What a line editor drops is what is typed before it is ready, so every step waits for the next prompt.
PROMPT = r"\n[^\n]*> "
ANSWERED = r"generated, [\d.]+ tokens/s(.|\n)*> "

session = Session(sys.argv[1])
session.expect(PROMPT)

# Ctrl-C stops the answer, not the program.
session.type("Count from one to one thousand in words.\r")
session.expect("one thousand in words[^\n]*\n.*\\w")
session.type("\x03")
session.expect(ANSWERED)

session.type("/system Answer in one word.\r")
session.expect(PROMPT)
session.type("/nonsense\r")
session.expect("no command /nonsense(.|\n)*> ")
session.type('"""\r')
session.expect("\n[^\n]*… ")
session.type("Say hello.\r")
session.expect("\n[^\n]*… ")
session.type('"""\r')
session.expect(ANSWERED)
session.type("/retry\r")
session.expect(ANSWERED)

session.type("/exit\r")
_, status = os.waitpid(session.process, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
