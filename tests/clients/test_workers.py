"""What routers ask of a worker besides answers."""

import re

import httpx


def get(url, path, **options):
    return httpx.get(f"{url}{path}", timeout=60, **options).raise_for_status().json()


def test_a_worker_says_what_it_is(url, model):
    assert re.fullmatch(r"\d+\.\d+\.\d+", get(url, "/version")["version"])
    info = get(url, "/server_info")
    assert info == get(url, "/get_server_info")
    assert (info["served_model_name"], info["dp_size"]) == (model, 1)
    assert info["context_length"] == 4096 and info["max_total_num_tokens"] >= 4096
    kind = get(url, "/model_info")
    assert kind == get(url, "/get_model_info")
    assert (kind["is_generation"], kind["model_type"], kind["model_path"]) == (True, "llama", model)
    # A router would look for a tokenizer there, and on the hub if there is nothing.
    assert "model_path" not in info and "tokenizer_path" not in info


def test_a_worker_says_how_busy_it_is(url, model):
    [idle] = get(url, "/get_load")
    assert set(idle) == {"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"} and idle["num_reqs"] == 0
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        for _ in range(10):
            next(lines)
        [busy] = get(url, "/get_load")
        assert busy["num_reqs"] == 1 and busy["num_waiting_reqs"] == 0 and busy["num_tokens"] >= 16


def test_prompts_are_rendered_as_they_are_answered(url, model):
    asked = {"model": model, "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 4}
    rendered = httpx.post(f"{url}/v1/chat/completions/render", json=asked, timeout=60).raise_for_status().json()
    answer = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60).raise_for_status().json()
    assert rendered["model"] == model and rendered["request_id"].startswith("chatcmpl-")
    assert len(rendered["token_ids"]) == answer["usage"]["prompt_tokens"]
    text = httpx.post(f"{url}/v1/detokenize", json={"model": model, "tokens": rendered["token_ids"]}, timeout=60).json()
    assert "Name three colours." in text["prompt"]
    texts = {"model": model, "prompt": ["one", "two three"], "max_tokens": 1}
    first, second = httpx.post(f"{url}/v1/completions/render", json=texts, timeout=60).raise_for_status().json()
    tokens = httpx.post(f"{url}/v1/tokenize", json={"model": model, "prompt": "two three"}, timeout=60).json()["tokens"]
    assert second["token_ids"] == tokens and first["token_ids"] != tokens
    for wrong, param in (({"messages": []}, "messages"), ({"model": "nobody"}, "model"), ({"session": "s"}, "session")):
        refused = httpx.post(f"{url}/v1/chat/completions/render", json=asked | wrong, timeout=60)
        assert refused.status_code in (400, 404) and refused.json()["error"]["param"] in (param, None), refused.text


def test_metrics_say_what_schedulers_read(url, operator):
    text = httpx.get(f"{url}/metrics", headers=operator, timeout=60).raise_for_status().text
    [cache] = re.findall(r'^vllm:cache_config_info\{([^}]*model_name="smollm2"[^}]*)\} 1$', text, re.MULTILINE)
    assert 'block_size="16"' in cache and int(re.search(r'num_gpu_blocks="(\d+)"', cache)[1]) >= 256
    [adapters] = re.findall(r'^vllm:lora_requests_info\{([^}]*model_name="smollm2"[^}]*)\} \d+$', text, re.MULTILINE)
    assert "running_lora_adapters=" in adapters and "max_lora=" in adapters
    # Cached prefixes that nobody uses do not make a worker look full.
    assert re.search(r'^vllm:kv_cache_usage_perc\{model_name="smollm2"\} 0(\.0+)?$', text, re.MULTILINE), text
