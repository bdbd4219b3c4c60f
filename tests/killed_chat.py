"""Asks a chat of `ruvllm run` one question, waits until its pages are on disk, and kills it. Prints what the terminal showed.

    python3 killed_chat.py <folder of the pages> <question> <path of ruvllm> <its arguments>
"""

import glob
import os
import signal
import sys
import time

from terminal import ANSWERED, PROMPT, Session

PAGE_TOKENS = 16

folder, question, program, *arguments = sys.argv[1:]
session = Session(program, *arguments)
session.expect(PROMPT)
session.type(f"{question}\r")
pages = int(session.expect(ANSWERED).group(1)) // PAGE_TOKENS

end = time.monotonic() + 300
while len(glob.glob(f"{folder}/*/*.page")) < pages:
    assert time.monotonic() < end, f"there should be {pages} pages in {folder} by now"
    time.sleep(0.01)
os.kill(session.process, signal.SIGKILL)
_, status = os.waitpid(session.process, 0)
assert os.WIFSIGNALED(status), status
print(session.seen.replace("\r\n", "\n"))
