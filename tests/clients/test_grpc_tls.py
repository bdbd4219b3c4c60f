"""gRPC as other machines reach it: encrypted, with keys and their limits, by a client that has only a certificate and a key."""

import json
import os
import subprocess

import grpc
import pytest
from test_fleet import HOME
from test_routers import Worker

INFO = "/sglang.grpc.scheduler.SglangScheduler/GetModelInfo"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A home folder with the models of this one, and with keys of its own."""
    folder = tmp_path_factory.mktemp("secured")
    (folder / "home/models").mkdir(parents=True)
    (folder / "home/models/smollm2").symlink_to(HOME / "models/smollm2")
    for_itself = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-nodes", "-days", "1"]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *for_itself]
    subprocess.run([*new, "-keyout", folder / "key.pem", "-out", folder / "certificate.pem"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def key(folder):
    def add(name, *limits):
        environment = os.environ | {"RUVLLM_HOME": str(folder / "home")}
        command = [os.environ["RUVLLM_BIN"], "keys", "add", name, "--json", *limits]
        return json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)["key"]

    return add


@pytest.fixture(scope="module")
def address(folder, key):
    key("first")
    encrypted = ["--tls-cert", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem")]
    memory = ["--memory-folder", str(folder / "memory")]
    worker = Worker(folder, 0, arguments=[*encrypted, *memory], RUVLLM_HOME=str(folder / "home"))
    try:
        yield worker.wait().grpc.removeprefix("grpc://").replace("127.0.0.1", "localhost")
    finally:
        assert worker.end() == 0
        worker.log.close()


@pytest.fixture
def call(address, folder):
    with grpc.secure_channel(address, grpc.ssl_channel_credentials((folder / "certificate.pem").read_bytes())) as channel:
        method = channel.unary_unary(INFO, request_serializer=None, response_deserializer=None)
        yield lambda key=None: method(b"", metadata=[("authorization", f"Bearer {key}")] if key else None, timeout=60)


def refusal(run):
    with pytest.raises(grpc.RpcError) as error:
        run()
    return error.value


def test_who_trusts_the_certificate_and_has_a_key_is_answered(call, key):
    assert b"smollm2" in call(key("laptop"))
    assert refusal(call).code() == grpc.StatusCode.UNAUTHENTICATED
    assert refusal(lambda: call("ruv_0000")).code() == grpc.StatusCode.UNAUTHENTICATED
    metrics = refusal(lambda: call(key("watcher", "--scope", "metrics")))
    assert metrics.code() == grpc.StatusCode.PERMISSION_DENIED and "inference" in metrics.details()


def test_who_does_not_encrypt_or_trust_is_not_answered(address):
    for channel in (grpc.insecure_channel(address), grpc.secure_channel(address, grpc.ssl_channel_credentials())):
        with channel:
            method = channel.unary_unary(INFO, request_serializer=None, response_deserializer=None)
            assert refusal(lambda: method(b"", timeout=20)).code() == grpc.StatusCode.UNAVAILABLE


def test_limits_of_a_key_hold(call, key):
    limited = key("limited", "--requests-per-minute", "1")
    assert call(limited)
    error = refusal(lambda: call(limited))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(error.initial_metadata() or error.trailing_metadata())["retry-after"]) > 0
