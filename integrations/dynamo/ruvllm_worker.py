"""Makes a RuvLLM server a worker of NVIDIA Dynamo: registers its model, and passes tokens on to it by gRPC.

    ruvllm serve smollm2 --grpc-port 50051 --grpc-tokenizer /srv/smollm2
    python ruvllm_worker.py --server 127.0.0.1:50051

Dynamo's frontend has the tokenizer, the chat template and the parsers; it reads them where the server wrote them. Messages of the
server are learned from itself, by reflection. See docs/routers.md.
"""

import argparse
import asyncio
import json
import logging
import os
import pathlib
import re
import signal

import grpc
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.publisher import PushSource
from dynamo.common.backend.run import run
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm.exceptions import Cancelled, CannotConnect, ConnectionTimeout, Disconnected, InvalidArgument, Unknown
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from pages import Pages

SCHEDULER, OWN, HEALTH = "sglang.grpc.scheduler.SglangScheduler", "ruvllm.v1.RuvLlm", "grpc.health.v1.Health"
# Tokens of a page.
PAGE = 16
# Fields of the same name and meaning.
SAMPLING = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "n"]
# What changes the answer's meaning, and is not done here.
REFUSED = {
    "": ["multi_modal_data", "prefill_result", "encoder_result"],
    "sampling_options": ["use_beam_search"],
    "output_options": ["prompt_logprobs"],
}
WITHOUT_EFFECT = ["min_tokens", "ignore_eos", "max_thinking_tokens"]
ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: InvalidArgument,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.DEADLINE_EXCEEDED: ConnectionTimeout,
}

log = logging.getLogger(__name__)


class Server:
    """A server's gRPC services."""

    def __init__(self, address, key=None, certificate=None):
        self.metadata = [("authorization", f"Bearer {key}")] if key else None
        credentials = certificate and grpc.ssl_channel_credentials(pathlib.Path(certificate).read_bytes())

        def channel(of):
            return of.secure_channel(address, credentials) if credentials else of.insecure_channel(address)

        self.channel = channel(grpc.aio)
        # Asks from threads of its own.
        self.describing = channel(grpc)
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.describing))

    def method(self, service, name):
        """Returns a method as a function of fields, which are as JSON has them."""
        described = self.pool.FindServiceByName(service).FindMethodByName(name)
        asked, said = (message_factory.GetMessageClass(kind) for kind in (described.input_type, described.output_type))
        kind = self.channel.unary_stream if described.server_streaming else self.channel.unary_unary
        call = kind(f"/{service}/{name}", request_serializer=asked.SerializeToString, response_deserializer=said.FromString)
        return lambda fields=None: call(json_format.ParseDict(fields or {}, asked()), metadata=self.metadata)

    async def close(self):
        self.describing.close()
        await self.channel.close()


class RuvllmEngine(LLMEngine):
    def __init__(self, server, pages):
        self.server, self.pages = server, pages
        self.answers, self.watching = {}, None

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where the server speaks gRPC (serve --grpc-port)")
        parser.add_argument("--key-variable", default="RUVLLM_KEY", help="environment variable with the server's key, if it needs one")
        parser.add_argument("--certificate", metavar="FILE", help="certificate that the server's TLS is trusted by")
        parser.add_argument("--kv-events", metavar="ADDRESS", help="where the server tells of its cache (serve --kv-events)")
        parser.add_argument("--kv-events-replay", metavar="ADDRESS", help="where it tells that again (serve --kv-events-replay)")
        parser.add_argument("--namespace", default=os.environ.get("DYN_NAMESPACE", "dynamo"))
        parser.add_argument("--component", default="ruvllm")
        parser.add_argument("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"))
        parser.add_argument("--tool-call-parser", help="as Dynamo names it")
        parser.add_argument("--reasoning-parser", help="as Dynamo names it")
        args = parser.parse_args(argv)
        if (args.kv_events is None) != (args.kv_events_replay is None):
            parser.error("--kv-events and --kv-events-replay need each other")
        pages = Pages(args.kv_events, args.kv_events_replay) if args.kv_events else None
        engine = cls(Server(args.server, os.environ.get(args.key_variable), args.certificate), pages)
        await engine.connect()
        config = WorkerConfig(
            namespace=args.namespace,
            component=args.component,
            # What Dynamo registers a model by before it asks for the rest.
            model_name=str(engine.folder),
            served_model_name=engine.model.served_model_name,
            discovery_backend=args.discovery_backend,
            event_plane=os.environ.get("DYN_EVENT_PLANE"),
            enable_kv_routing=pages is not None,
            tool_call_parser=args.tool_call_parser,
            reasoning_parser=args.reasoning_parser,
        )
        return engine, config

    async def connect(self):
        """Learns what the server speaks and serves."""
        try:
            # Reflection is asked by a client that blocks.
            describe, measure, self.generates, self.watches = await asyncio.to_thread(self.methods)
            self.model, self.sizes = await describe(), await measure()
        except grpc.RpcError as error:
            raise SystemExit(f"the server does not answer: {error.details()}") from None
        self.folder = pathlib.Path(self.model.tokenizer_path)
        if not (self.folder / "tokenizer.json").is_file():
            raise SystemExit("there is no tokenizer to register; start the server with --grpc-tokenizer, with a folder that is here, too")
        describe_model(self.folder, self.model)

    async def start(self, worker_id):
        self.watching = asyncio.create_task(self.leave_with_the_server())
        registration = LlmRegistration(
            context_length=self.model.max_context_length,
            kv_cache_block_size=PAGE,
            total_kv_blocks=self.sizes.max_total_num_tokens // PAGE,
        )
        return EngineConfig(model=str(self.folder), served_model_name=self.model.served_model_name, llm=registration)

    def methods(self):
        named = [(SCHEDULER, "GetModelInfo"), (SCHEDULER, "GetServerInfo"), (OWN, "Generate"), (HEALTH, "Watch")]
        return [self.server.method(*name) for name in named]

    async def leave_with_the_server(self):
        """Ends this worker when the server drains or is gone: running answers finish, and no more requests come."""
        try:
            async for health in self.watches():
                if health.status != 1:
                    break
            log.info("the server takes no more requests; leaving")
        except grpc.RpcError as error:
            log.error("the server is gone: %s; leaving", error.details())
        os.kill(os.getpid(), signal.SIGTERM)

    async def generate(self, request, context):
        normalize_request_token_ids(request)
        answer = self.generates(self.fields(request))
        self.answers[context.id()] = answer
        wants_logprobs = (request.get("output_options") or {}).get("logprobs") is not None
        began = False
        try:
            async for part in answer:
                began = True
                yield chunk(part, wants_logprobs)
        except grpc.RpcError as error:
            raise told(error, began) from None
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise
            raise Cancelled("the request was cancelled") from None
        finally:
            self.answers.pop(context.id(), None)
            answer.cancel()

    def fields(self, request):
        """Returns what the server is asked for."""
        groups = {name: request.get(name) or {} for name in ("sampling_options", "stop_conditions", "output_options")}
        for group, names in REFUSED.items():
            for name in names:
                if (groups[group] if group else request).get(name):
                    raise InvalidArgument(f"{name} is not supported by this worker")
        sampling, stop = groups["sampling_options"], groups["stop_conditions"]
        ignored = [name for name in WITHOUT_EFFECT if stop.get(name)]
        if ignored:
            log.warning("without effect: %s", ", ".join(ignored))
        tokens = request["token_ids"]
        room = max(self.model.max_context_length - len(tokens), 1)
        fields = {name: sampling[name] for name in SAMPLING if sampling.get(name) is not None}
        fields |= {"tokens": {"ids": tokens}, "max_tokens": stop.get("max_tokens") or room}
        if sampling.get("top_k") is not None:
            fields["top_k"] = max(sampling["top_k"], 0)
        if groups["output_options"].get("logprobs") is not None:
            fields["logprobs"] = groups["output_options"]["logprobs"]
        return fields | form(sampling.get("guided_decoding") or {})

    async def abort(self, context):
        answer = self.answers.get(context.id())
        if answer:
            answer.cancel()

    async def kv_event_sources(self):
        return [PushSource(on_ready=self.pages.follow)] if self.pages else []

    async def health_check_payload(self):
        return build_health_check_payload(bos_token_id=self.model.bos_token_id)

    async def cleanup(self):
        if self.watching:
            self.watching.cancel()
        if self.pages:
            await asyncio.to_thread(self.pages.end)
        await self.server.close()


def describe_model(folder, model):
    """Writes what Dynamo reads of a model besides its tokenizer, unless it is there."""
    config = {
        "model_type": model.model_type,
        "architectures": list(model.architectures),
        "vocab_size": model.vocab_size,
        "bos_token_id": model.bos_token_id,
        "eos_token_id": list(model.eos_token_ids),
        "max_position_embeddings": model.max_context_length,
    }
    path = folder / "config.json"
    if not path.exists():
        path.write_text(json.dumps(config, indent=2))


def form(guided):
    """Returns the fields that hold an answer to a form."""
    if guided.get("json") is not None:
        schema = guided["json"]
        return {"json_schema": schema if isinstance(schema, str) else json.dumps(schema)}
    if guided.get("regex"):
        return {"regex": guided["regex"]}
    if guided.get("choice"):
        return {"regex": "|".join(re.escape(choice) for choice in guided["choice"])}
    if guided.get("grammar"):
        return {"gbnf": guided["grammar"]}
    if guided.get("structural_tag"):
        raise InvalidArgument("guided_decoding.structural_tag is not supported by this worker; use json, regex, choice or grammar")
    return {}


def chunk(part, wants_logprobs):
    """Returns a part of an answer as Dynamo has it."""
    said = {"token_ids": list(part.tokens), "index": part.index}
    if wants_logprobs:
        said["log_probs"] = [one.token.logprob for one in part.logprobs]
        said["top_logprobs"] = [
            [{"rank": rank, "token_id": other.token, "logprob": other.logprob} for rank, other in enumerate(one.top, 1)] for one in part.logprobs
        ]
    if part.finish_reason:
        prompt, completion = part.usage.prompt_tokens, part.usage.completion_tokens
        said["finish_reason"] = part.finish_reason
        said["completion_usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": part.usage.cached_tokens},
        }
    return said


def told(error, began):
    """Returns an error of the server as Dynamo has it, which asks another worker where that helps."""
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return (Disconnected if began else CannotConnect)(error.details())
    return ERRORS.get(error.code(), Unknown)(error.details())


if __name__ == "__main__":
    run(RuvllmEngine)
