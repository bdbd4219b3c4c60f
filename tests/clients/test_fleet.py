"""Workers that share a memory in PostgreSQL, which is fetched and started here."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import httpx
import pytest
from test_routers import Worker

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches/soak"))
from database import PROGRAMS, Database  # noqa: E402

HOME = pathlib.Path(os.environ.get("RUVLLM_HOME") or pathlib.Path.home() / ".ruvllm")


@pytest.fixture(scope="module")
def database():
    if not (HOME / PROGRAMS).is_dir():
        subprocess.run([sys.executable, ROOT / "tests/fetch.py", "postgres", HOME / PROGRAMS], check=True)
    # Not below a folder that only this user can read: the database may have to run as another.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ruvllm-fleet-", dir="/tmp"))
    folder.chmod(0o755)
    database, problem = Database.start(HOME, folder / "database")
    assert database, problem
    yield database
    with contextlib.suppress(RuntimeError):
        database.end()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fleet(database, tmp_path):
    """Starts workers that share the database."""
    started = []

    def start(count=1, model="smollm2"):
        # With a format of its own, nothing is measured for a model that is tried once.
        arguments = ["--memory-postgres", database.url, "--kv", "f16"]
        new = [Worker(tmp_path, len(started) + at, model, arguments) for at in range(count)]
        started.extend(new)
        return new

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.end(signal.SIGKILL)
        worker.log.close()


def listed(worker):
    """The workers that `ruvllm ps --all` shows, but for those of earlier tests."""
    shown = subprocess.run([os.environ["RUVLLM_BIN"], "ps", "--all", "--json", "--url", worker.url], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return [other for other in json.loads(shown.stdout)["workers"] if other["alive"]]


def until(is_so):
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it does not come to that")


def said(worker, session, text):
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "session": session, "max_tokens": 8}
    return httpx.post(f"{worker.url}/v1/chat/completions", json=body, timeout=120).raise_for_status().json()


def test_workers_see_each_other_come_and_go(fleet):
    first, second = [worker.wait() for worker in fleet(2)]
    until(lambda: {worker["address"] for worker in listed(first)} >= {first.url, second.url})
    me, other = listed(first)[0], next(worker for worker in listed(first) if worker["address"] == second.url)
    assert me["address"] == first.url and me["this"] and not other["this"]
    assert [model["name"] for model in other["models"]] == ["smollm2"]
    assert me["models"][0]["fingerprint"] == other["models"][0]["fingerprint"] != ""
    assert second.end() == 0
    assert second.url not in {worker["address"] for worker in listed(first)}


def test_a_session_goes_on_at_another_worker_when_its_own_is_killed(fleet, operator):
    first, second = [worker.wait() for worker in fleet(2)]
    short = said(first, "moved", "My name is Ada.")["usage"]["prompt_tokens"]
    path = "/v1/sessions/moved"
    until(lambda: httpx.get(second.url + path, headers=operator).status_code == 200)
    first.end(signal.SIGKILL)
    assert said(second, "moved", "What is my name?")["usage"]["prompt_tokens"] > short + 8
    until(lambda: httpx.get(second.url + path, headers=operator).json()["turns"] == 2)
    messages = httpx.get(second.url + path, headers=operator).json()["messages"]
    assert [message["content"] for message in messages if message["role"] == "user"] == ["My name is Ada.", "What is my name?"]


def test_another_file_under_the_same_name_is_refused(fleet, tmp_path):
    (first,) = [worker.wait() for worker in fleet()]
    until(lambda: first.url in {worker["address"] for worker in listed(first)})
    path = pathlib.Path(shutil.copy(next((HOME / "models/smollm2").glob("*.gguf")), tmp_path / "smollm2.gguf"))
    with open(path, "r+b") as model:
        model.seek(-64, os.SEEK_END)
        model.write(bytes(64))
    (other,) = fleet(model=str(path))
    assert other.process.wait(timeout=120) != 0
    other.log.seek(0)
    log = other.log.read()
    assert f"the worker at {first.url} shares this memory and serves another file as" in log and "smollm2" in log, log
    assert said(first, "unimpressed", "Hello")["choices"]


def test_a_database_that_goes_away_stops_no_answer(fleet, database, operator):
    first, second = [worker.wait() for worker in fleet(2)]
    until(lambda: len({worker["address"] for worker in listed(first)} & {first.url, second.url}) == 2)
    database.end()
    for worker in (first, second):
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        assert httpx.post(f"{worker.url}/v1/chat/completions", json=body, timeout=120).status_code == 200
        refused = httpx.get(f"{worker.url}/admin/workers", headers=operator, timeout=60)
        assert refused.status_code == 503 and "memory" in refused.json()["error"]["message"], refused.text
    database.begin()

    def is_back():
        answer = httpx.get(f"{first.url}/admin/workers", headers=operator, timeout=60)
        return answer.status_code == 200 and second.url in {worker["address"] for worker in answer.json()["workers"] if worker["alive"]}

    until(is_back)
