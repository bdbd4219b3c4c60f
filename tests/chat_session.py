"""Chats with `ruvllm run` on a pseudo-terminal, as a person would, and fails if it does not behave.

    python3 chat_session.py <path of ruvllm>
"""

import os
import sys

from terminal import ANSWERED, PROMPT, Session

session = Session(sys.argv[1], "run", "smollm2", "--temperature", "0", "--max-tokens", "6000")
session.expect(PROMPT)

# Ctrl-C stops the answer, not the program.
session.type("Count from one to one thousand in words.\r")
session.expect("one thousand in words[^\n]*\n.*\\w")
session.type("\x03")
session.expect(ANSWERED)

session.type("/system Answer in one word.\r")
session.expect(PROMPT)
session.type("/nonsense\r")
session.expect("unknown command /nonsense(.|\n)*> ")
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
