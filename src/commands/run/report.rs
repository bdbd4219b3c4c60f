//! What `ruvllm run` reports about an answer.

use ruvllm_runtime::{Divergence, Engine, FinishReason, Response};
use serde_json::{Value, json};

/// Returns the answer, its usage and timings as one JSON object.
pub fn to_json(engine: &Engine, response: &Response, reason: FinishReason) -> Value {
    let (usage, timings) = (response.usage, response.timings);
    let mut object = json!({
        "reasoning": response.reasoning,
        "text": response.text,
        "tokens": response.tokens,
        "finish_reason": match reason { FinishReason::Stop => "stop", FinishReason::Length => "length" },
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "truncated_prompt_tokens": usage.truncated_tokens,
            "prompt_tokens_details": { "cached_tokens": usage.cached_tokens, "loaded_tokens": usage.loaded_tokens },
            "completion_tokens": usage.completion_tokens,
            "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "steps": usage.steps,
            "drafted_tokens": usage.drafted_tokens,
            "drafted_by_model": usage.drafted_by_model,
            "accepted_by_model": usage.accepted_by_model,
            "accepted_tokens": usage.accepted_tokens,
        },
        "timings": {
            "ttft_ms": timings.ttft_ms,
            "prefill_tok_s": timings.prefill_tok_s,
            "decode_tok_s": timings.decode_tok_s,
        },
    });
    if let Some(divergence) = &response.divergence {
        let Divergence { at, cached, asked } = divergence;
        object["prefix_divergence"] = json!({ "token": at, "cached": cached, "asked": asked });
    }
    if !response.logprobs.is_empty() {
        object["logprobs"] = logprobs(engine, response);
    }
    object
}

/// Returns each generated token with its log probability and the most likely alternatives.
fn logprobs(engine: &Engine, response: &Response) -> Value {
    let token = |id: u32, logprob: f32| {
        let text = String::from_utf8_lossy(engine.tokenizer().token_bytes(id));
        json!({ "token": id, "text": text, "logprob": logprob })
    };
    let each = response.tokens.iter().zip(&response.logprobs).map(|(id, (logprob, top))| {
        let mut chosen = token(*id, *logprob);
        chosen["top"] = top.iter().map(|other| token(other.token, other.logprob)).collect();
        chosen
    });
    each.collect()
}

/// Summarises token counts and speed in one line.
pub fn summary(response: &Response) -> String {
    let (usage, timings) = (response.usage, response.timings);
    let cached = match (usage.cached_tokens, usage.loaded_tokens) {
        (0, _) => String::new(),
        (cached, 0) => format!(" ({cached} cached)"),
        (cached, loaded) => format!(" ({cached} cached, {loaded} of them on disk)"),
    };
    let mut line = format!(
        "{} prompt tokens{cached}, {:.0} tokens/s; first token after {:.0} ms; {} generated, {:.1} tokens/s",
        usage.prompt_tokens, timings.prefill_tok_s, timings.ttft_ms, usage.completion_tokens, timings.decode_tok_s
    );
    if usage.truncated_tokens > 0 {
        line = format!("{} prompt tokens did not fit and were dropped; {line}", usage.truncated_tokens);
    }
    if usage.drafted_tokens > 0 {
        let (right, all) = (usage.accepted_tokens, usage.drafted_tokens);
        line.push_str(&format!(" in {} steps ({right} of {all} draft tokens accepted", usage.steps));
        if usage.drafted_by_model > 0 {
            let (right, all) = (usage.accepted_by_model, usage.drafted_by_model);
            line.push_str(&format!(", of the draft model {right} of {all}"));
        }
        line.push(')');
    }
    line
}
