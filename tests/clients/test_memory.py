"""What the server remembers, as other programs see it."""

import os
import subprocess
import time

import httpx
import pyarrow.parquet


def remembered(url, operator, request_id):
    """The entry of a request; it is written a second later at most."""
    for _ in range(3000):
        answer = httpx.get(f"{url}/v1/witness/{request_id}", headers=operator)
        if answer.status_code == 200:
            return answer.json()["entry"]
        time.sleep(0.1)
    raise AssertionError(f"{request_id} was never written")


def test_a_session_needs_only_what_is_new(client, model, url, operator):
    say = lambda text: client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=8, extra_body={"session": "python"})
    first, second = say("My name is Ada."), say("What is my name?")
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    session = httpx.get(f"{url}/v1/sessions/python", headers=operator).json()
    assert [message["role"] for message in session["messages"]] == ["user", "assistant"] * 2
    assert httpx.delete(f"{url}/v1/sessions/python", headers=operator).json() == {"deleted": True}
    assert httpx.get(f"{url}/v1/sessions/python", headers=operator).status_code == 404


def test_the_log_is_read_by_arrow(client, model, url, operator, tmp_path):
    for at in range(3):
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": f"Say {at}."}], max_tokens=4,
            extra_headers={"x-request-id": f"arrow-{at}"})
    entries = [remembered(url, operator, f"arrow-{at}") for at in range(3)]
    file = tmp_path / "log.parquet"
    subprocess.run([os.environ["RUVLLM_BIN"], "witness", "export", file, "--memory-folder", os.environ["RUVLLM_TEST_MEMORY"]], check=True)
    table = pyarrow.parquet.read_table(file)
    rows = {row["request"]: row for row in table.to_pylist()}
    for entry in entries:
        row = rows[entry["request"]]
        assert row["total_ms"] == entry["latency"]["total_ms"]
        assert (row["model"], row["answer_tokens"]) == (model, entry["tokens"]["answer"])
        assert int(row["at"].timestamp() * 1000) == entry["at_ms"]
        assert row["error"] is None and row["quality"] == entry["quality"]["score"]
