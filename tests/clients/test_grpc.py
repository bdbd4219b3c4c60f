"""The gRPC services, with grpcio: what they are is learned from the server itself, by reflection."""

import json
import os
import pathlib
import subprocess
import sys
import time

import grpc
import httpx
import pytest
import tokenizers
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

PROTO = pathlib.Path(__file__).resolve().parents[2] / "crates/server/src/api/grpc/proto"
SCHEDULER, OWN, HEALTH = "sglang.grpc.scheduler.SglangScheduler", "ruvllm.v1.RuvLlm", "grpc.health.v1.Health"
GREEDY = {"temperature": 0, "top_p": 1, "top_k": -1, "repetition_penalty": 1, "n": 1, "max_new_tokens": 12}
TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def channel():
    with grpc.insecure_channel(os.environ["RUVLLM_TEST_GRPC"]) as channel:
        yield channel


@pytest.fixture(scope="module")
def call(channel):
    """Calls a method by its name with fields as JSON has them; returns what is said, as protobuf's messages."""
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))

    def call(service, method, fields=None, metadata=None, as_stream=False):
        described = pool.FindServiceByName(service).FindMethodByName(method)
        asked, said = (message_factory.GetMessageClass(kind) for kind in (described.input_type, described.output_type))
        kind = channel.unary_stream if described.server_streaming else channel.unary_unary
        invoke = kind(f"/{service}/{method}", request_serializer=asked.SerializeToString, response_deserializer=said.FromString)
        answer = invoke(json_format.ParseDict(fields or {}, asked()), metadata=metadata, timeout=120)
        return list(answer) if described.server_streaming and not as_stream else answer

    return call


@pytest.fixture(scope="module")
def local(operator):
    return [(name, value) for name, value in operator.items()]


def refused(run):
    with pytest.raises(grpc.RpcError) as error:
        run()
    return error.value.code(), error.value.details()


def tokens_of(url, model, text):
    return httpx.post(f"{url}/v1/tokenize", json={"model": model, "prompt": text}, timeout=60).raise_for_status().json()["tokens"]


def completed(url, model, **fields):
    body = {"model": model, "prompt": TEXT, "max_tokens": 12, "temperature": 0, "top_p": 1, "top_k": 0, "repetition_penalty": 1}
    return httpx.post(f"{url}/v1/completions", json=body | fields, timeout=120).raise_for_status().json()


def generated(call, ids, params=None, **fields):
    request = {"request_id": "r", "tokenized": {"input_ids": ids}, "sampling_params": GREEDY | (params or {})}
    said = call(SCHEDULER, "Generate", request | fields)
    assert all(one.request_id == "r" for one in said)
    return [one.chunk for one in said if one.HasField("chunk")], [one.complete for one in said if one.HasField("complete")]


def test_what_is_served_is_what_the_files_describe(channel, tmp_path):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) == {SCHEDULER, OWN, HEALTH}
    names = ["sglang_scheduler.proto", "ruvllm.proto", "health.proto"]
    compiler = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--descriptor_set_out={tmp_path}/set", *names]
    subprocess.run(compiler, check=True)
    described = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes())
    assert len(described.file) == len(names)
    for file in described.file:
        assert database.FindFileByName(file.name) == file, "descriptors.bin is older than its source"
    # A question after the answer to another, as grpcurl asks.
    asked = iter(reflection_pb2.ServerReflectionRequest(list_services="") for _ in range(2))
    said = list(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked, timeout=60))
    assert len(said) == 2 and said[0] == said[1]


def test_health_is_told_once_and_as_it_changes(call):
    for service in ("", SCHEDULER, OWN):
        assert call(HEALTH, "Check", {"service": service}).status == 1
    assert refused(lambda: call(HEALTH, "Check", {"service": "nobody"}))[0] == grpc.StatusCode.NOT_FOUND
    watched = call(HEALTH, "Watch", {}, as_stream=True)
    assert next(watched).status == 1
    watched.cancel()
    assert call(SCHEDULER, "HealthCheck").healthy


def test_tokens_become_the_tokens_that_http_gives(call, url, model):
    ids = tokens_of(url, model, TEXT)
    text = completed(url, model)["choices"][0]["text"]
    for stream in (False, True):
        chunks, [whole] = generated(call, ids, stream=stream)
        assert whole.finish_reason == "length" and whole.prompt_tokens == len(ids) and whole.completion_tokens == 12
        assert bool(chunks) == stream and [id for chunk in chunks for id in chunk.token_ids] in ([], list(whole.output_ids))
        said = httpx.post(f"{url}/v1/detokenize", json={"model": model, "tokens": list(whole.output_ids)}, timeout=60).json()
        assert said["prompt"] == text


def test_answers_end_where_they_are_told_to(call, url, model):
    ids = tokens_of(url, model, "Numbers: one, two, three,")
    _, [whole] = generated(call, ids, {"stop": [","], "max_new_tokens": 40})
    assert whole.finish_reason == "stop" and whole.matched_stop_str == ","
    chat = {"model": model, "messages": [{"role": "user", "content": "Say hello."}]}
    ids = httpx.post(f"{url}/v1/chat/completions/render", json=chat, timeout=60).json()["token_ids"]
    _, [whole] = generated(call, ids, {"max_new_tokens": 200})
    _, [untrimmed] = generated(call, ids, {"max_new_tokens": 200, "no_stop_trim": True})
    ends = call(SCHEDULER, "GetModelInfo").eos_token_ids
    assert whole.finish_reason == "stop" and whole.matched_token_id in ends
    assert list(untrimmed.output_ids) == [*whole.output_ids, whole.matched_token_id]
    # Told to end where it does anyway.
    _, [told] = generated(call, ids, {"max_new_tokens": 200, "stop_token_ids": list(ends)})
    assert told.output_ids == whole.output_ids


def test_probabilities_and_several_answers(call, url, model):
    ids = tokens_of(url, model, TEXT)
    wanted = {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 2, "stream": True}
    chunks, whole = generated(call, ids, {"n": 2, "temperature": 0.8, "max_new_tokens": 5}, **wanted)
    assert sorted(one.index for one in whole) == [0, 1]
    for one in whole:
        likely = one.output_logprobs
        assert list(likely.token_ids) == list(one.output_ids) and len(likely.token_logprobs) == len(likely.top_logprobs) == 5
        assert all(len(top.values) == len(top.token_ids) == 2 for top in likely.top_logprobs)
        told = [value for chunk in chunks if chunk.index == one.index for value in chunk.output_logprobs.token_logprobs]
        assert told == list(likely.token_logprobs)


def test_answers_are_held_to_a_form(call, url, model):
    ids = tokens_of(url, model, "A year: ")
    _, [whole] = generated(call, ids, {"regex": "19[0-9]{2}"})
    text = httpx.post(f"{url}/v1/detokenize", json={"model": model, "tokens": list(whole.output_ids)}, timeout=60).json()["prompt"]
    assert len(text) == 4 and text.startswith("19")
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    said = call(OWN, "Generate", {"text": "JSON: ", "max_tokens": 20, "temperature": 0, "json_schema": json.dumps(schema)})
    assert set(json.loads("".join(one.text for one in said))) == {"a"}


@pytest.mark.parametrize(
    "field, request_",
    [
        ("mm_inputs", None),
        ("return_hidden_states", {"return_hidden_states": True}),
        ("input_embeds", {"input_embeds": [0.5]}),
        ("disaggregated_params", {"disaggregated_params": {"bootstrap_port": 1}}),
        ("custom_logit_processor", {"custom_logit_processor": "code"}),
        ("logprob_start_len", {"return_logprob": True}),
        ("top_logprobs_num", {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": -2}),
        ("structural_tag", {"sampling_params": GREEDY | {"structural_tag": "{}"}}),
        ("json_schema", {"sampling_params": GREEDY | {"json_schema": "{"}}),
        ("stop_token_ids", {"sampling_params": GREEDY | {"stop_token_ids": [5]}}),
        ("max_new_tokens", {"sampling_params": GREEDY | {"max_new_tokens": -1}}),
        ("temperature", {"sampling_params": GREEDY | {"temperature": -1}}),
        ("sampling_params.n", {"sampling_params": GREEDY | {"n": 1000}}),
        ("input_ids", {"tokenized": {"input_ids": []}}),
        ("input_ids", {"tokenized": {"input_ids": [4_000_000_000]}}),
        ("request_id", {"request_id": "r" * 1000}),
    ],
)
def test_what_cannot_be_done_is_named(field, request_, call, channel):
    if request_ is None:
        # Its messages are not described here: some bytes of a list of pictures' addresses.
        raw = channel.unary_stream(f"/{SCHEDULER}/Generate", request_serializer=None, response_deserializer=None)
        outcome = refused(lambda: list(raw(b"\x1a\x03\x0a\x01x", timeout=60)))
    else:
        whole = {"request_id": "r", "tokenized": {"input_ids": [1, 2]}, "sampling_params": GREEDY} | request_
        outcome = refused(lambda: call(SCHEDULER, "Generate", whole))
    assert outcome[0] == grpc.StatusCode.INVALID_ARGUMENT and field in outcome[1], outcome


def test_bytes_that_are_no_message_and_methods_that_are_none_do_no_harm(channel, call):
    raw = channel.unary_unary(f"/{SCHEDULER}/GetLoads", request_serializer=None, response_deserializer=None)
    assert refused(lambda: raw(b"\xff" * 64, timeout=60))[0] == grpc.StatusCode.INVALID_ARGUMENT
    nobody = channel.unary_unary("/ruvllm.v1.RuvLlm/Nothing", request_serializer=None, response_deserializer=None)
    assert refused(lambda: nobody(b"", timeout=60))[0] == grpc.StatusCode.UNIMPLEMENTED
    sections = b"\x12\x04core" * 100
    assert raw(sections, timeout=60)
    assert refused(lambda: raw(sections, timeout=60, compression=grpc.Compression.Gzip))[0] == grpc.StatusCode.UNIMPLEMENTED
    large = refused(lambda: raw(bytes(9 << 20), timeout=60))
    assert large[0] == grpc.StatusCode.RESOURCE_EXHAUSTED, large
    assert call(SCHEDULER, "HealthCheck").healthy


def test_an_answer_is_ended_by_its_id(call, url, model):
    ids = tokens_of(url, model, "Once upon a time")
    assert not call(SCHEDULER, "Abort", {"request_id": "long"}).success
    request = {"request_id": "long", "tokenized": {"input_ids": ids}, "sampling_params": GREEDY | {"max_new_tokens": 3000}, "stream": True}
    answer = call(SCHEDULER, "Generate", request, as_stream=True)
    next(answer)
    assert call(SCHEDULER, "Abort", {"request_id": "long", "reason": "changed my mind"}).success
    code, details = refused(lambda: list(answer))
    assert code == grpc.StatusCode.CANCELLED and "changed my mind" in details
    # One that the client leaves ends as well.
    answer = call(SCHEDULER, "Generate", request, as_stream=True)
    next(answer)
    assert call(SCHEDULER, "GetLoads").loads[0].num_total_reqs >= 1
    answer.cancel()
    for _ in range(200):
        if call(SCHEDULER, "GetLoads").aggregate.total_reqs == 0:
            return
        time.sleep(0.05)
    raise AssertionError("it goes on")


def test_embeddings_are_those_of_http(call, url):
    body = {"model": "minilm", "input": ["A text", "another"]}
    expected = [one["embedding"] for one in httpx.post(f"{url}/v1/embeddings", json=body, timeout=60).json()["data"]]
    said = call(OWN, "Embed", {"texts": body["input"]})
    for vector, other in zip(said.embeddings, expected, strict=True):
        assert list(vector.values) == pytest.approx(other, abs=1e-6)
    assert said.prompt_tokens > 4
    ids = [101, 1037, 3793, 102]
    tokens = call(OWN, "Embed", {"tokens": [{"ids": ids}]}).embeddings[0].values
    one = call(SCHEDULER, "Embed", {"request_id": "e", "tokenized": {"input_ids": ids}})
    assert list(one.embedding) == list(one.complete.embedding) == list(tokens)
    assert one.embedding_dim == one.complete.embedding_dim == 384 and one.prompt_tokens == one.complete.prompt_tokens == 4
    outcome = refused(lambda: call(OWN, "Embed", {"texts": ["fine", ""]}))
    assert outcome[0] == grpc.StatusCode.INVALID_ARGUMENT and outcome[1].startswith("texts[1]")
    outcome = refused(lambda: call(SCHEDULER, "Embed", {"tokenized": {"input_ids": [101, 4_000_000]}}))
    assert outcome[0] == grpc.StatusCode.INVALID_ARGUMENT and "4000000" in outcome[1]


def test_texts_are_continued_with_tokens_and_probabilities(call, url, model):
    text = completed(url, model, seed=3, temperature=0.7)["choices"][0]["text"]
    fields = {"text": TEXT, "max_tokens": 12, "seed": "3", "temperature": 0.7, "top_p": 1, "top_k": 0, "repetition_penalty": 1, "logprobs": 1}
    said = call(OWN, "Generate", fields)
    assert "".join(one.text for one in said) == text
    assert sum(len(one.tokens) for one in said) == sum(len(one.logprobs) for one in said) == said[-1].usage.completion_tokens == 12
    assert said[-1].finish_reason == "length" and all(one.id == said[0].id for one in said)
    assert refused(lambda: call(OWN, "Generate", {}))[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert refused(lambda: call(OWN, "Generate", {"model": "nobody", "text": "x"}))[0] == grpc.StatusCode.NOT_FOUND


def test_feedback_and_the_memory_are_reached(call, url, model, local):
    said = call(OWN, "Generate", {"text": "A remark about otters:", "max_tokens": 4, "temperature": 0}, local)
    accepted = call(OWN, "Feedback", {"request_id": said[0].id, "score": 1.0}, local)
    assert accepted.id and accepted.request_id
    assert refused(lambda: call(OWN, "Feedback", {"request_id": "nobody", "score": 1.0}, local))[0] == grpc.StatusCode.NOT_FOUND
    assert refused(lambda: call(OWN, "Feedback", {"request_id": said[0].id, "score": 7.0}, local))[0] == grpc.StatusCode.INVALID_ARGUMENT
    # An answer of the other service, by the id that its client gave.
    request = {"request_id": "mine", "tokenized": {"input_ids": tokens_of(url, model, TEXT)}, "sampling_params": GREEDY}
    call(SCHEDULER, "Generate", request, local)
    assert call(OWN, "Feedback", {"request_id": "mine", "score": -1.0}, local).request_id
    assert refused(lambda: call(OWN, "SearchMemory", {"text": "otters"}))[0] == grpc.StatusCode.PERMISSION_DENIED
    for _ in range(100):
        found = call(OWN, "SearchMemory", {"text": "otters", "limit": 3}, local).items
        if found:
            break
        time.sleep(0.1)
    assert 0 < len(found) <= 3 and json.loads(found[0].json) and found[0].kind in ("request", "answer", "session", "policy")


def test_routers_learn_what_they_need(call, url, model):
    info = call(SCHEDULER, "GetModelInfo")
    assert info.served_model_name == model and info.is_generation and info.max_context_length == 4096
    assert info.model_path == "" and info.architectures == ["llama"] and info.eos_token_ids
    server = call(SCHEDULER, "GetServerInfo")
    assert server.max_total_num_tokens >= 4096 and server.server_type == "grpc" and server.uptime_seconds > 0
    loads = call(SCHEDULER, "GetLoads", {"include": ["all"]})
    assert loads.dp_rank_count == len(loads.loads) == 1 and loads.loads[0].max_total_num_tokens == server.max_total_num_tokens
    assert refused(lambda: call(SCHEDULER, "GetLoads", {"dp_rank": 3}))[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_the_tokenizer_for_routers_reads_texts_as_the_model_does(call, url, model):
    folder = pathlib.Path(call(SCHEDULER, "GetModelInfo").tokenizer_path)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in config["chat_template"] and theirs.get_vocab_size() == call(SCHEDULER, "GetModelInfo").vocab_size
    essays = pathlib.Path(__file__).resolve().parents[1] / "data/essays.txt"
    odd = "  two  spaces\n\n\ttabs 1234567 it's WE'LL naïve Ünïcödé 日本語 🙂👩‍👩‍👧 \r\n x\u00a0y  \n"
    for text in [odd, essays.read_text()[:20000], "", " ", "a" * 300, "'s 's"]:
        assert theirs.encode(text, add_special_tokens=False).ids == tokens_of(url, model, text)
