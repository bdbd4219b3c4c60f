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


def test_feedback_by_the_ids_that_clients_are_told(client, model, url, operator):
    """Without --learn: the score is kept, the texts are not, and users are found again."""
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Say yes."}], max_tokens=4, user="ada")
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": "Say no."}], max_tokens=4, user="ada")
    for request_id in [answer.id, raw.headers["x-request-id"]]:
        said = httpx.post(f"{url}/v1/feedback", json={"request_id": request_id, "score": "up", "correction": "Yes!"})
        assert said.status_code == 202, said.text
        assert said.json()["stored"] == "queued" and said.json()["withheld"] == ["correction"]
    assert httpx.post(f"{url}/v1/feedback", json={"request_id": "chatcmpl-none", "score": 1}).status_code == 404
    assert remembered(url, operator, answer.id)["user"] == "ada"
    for _ in range(3000):
        shown = httpx.get(f"{url}/v1/witness/{answer.id}", headers=operator).json()
        if shown["feedback"]:
            break
        time.sleep(0.1)
    assert [(said["kind"], said["score"]) for said in shown["feedback"]] == [("feedback", 1.0)]
    found = httpx.get(f"{url}/v1/witness", params={"user": "ada"}, headers=operator).json()["data"]
    assert answer.id in [entry["response"] for entry in found]
    forgotten = httpx.delete(f"{url}/v1/feedback/{answer.id}", headers=operator).json()
    assert (forgotten["requests"], forgotten["feedback"]) == (1, 1)
    assert httpx.get(f"{url}/v1/witness/verify", headers=operator).json()["sound"]
