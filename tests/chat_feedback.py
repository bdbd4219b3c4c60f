"""Rates answers in `ruvllm run` on a pseudo-terminal, as a person would, and fails if it does not behave.

    python3 chat_feedback.py <path of ruvllm> <folder of a memory>
"""

import os
import sys

from terminal import ANSWERED, PROMPT, Session

session = Session(sys.argv[1], "run", "smollm2", "--temperature", "0", "--max-tokens", "8", "--context", "512",
                  "--learn", "--memory-folder", sys.argv[2])
session.expect(PROMPT)
session.type("/good\r")
session.expect("there is no answer yet(.|\n)*> ")
session.type("Say hello.\r")
session.expect(ANSWERED)
session.type("/good\r")
session.expect("noted(.|\n)*> ")
session.type("What is two plus two?\r")
session.expect(ANSWERED)
session.type("/fix\r")
session.expect("/fix needs the text(.|\n)*> ")
session.type("/fix Four.\r")
session.expect("noted(.|\n)*> ")
session.type("Name a colour.\r")
session.expect(ANSWERED)
session.type("/bad Too long.\r")
session.expect("noted(.|\n)*> ")
session.type("/help\r")
session.expect("/bad \\[REASON\\](.|\n)*> ")
session.type("/exit\r")
_, status = os.waitpid(session.process, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
