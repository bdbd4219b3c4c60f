//! Estimates of what requests cost, before that is known.

use ruvllm_runtime::{EmbedInput, EmbedRequest, Message, Prompt, Request, RerankRequest};

use crate::access::Demand;

/// Low estimate of bytes per token: what is reserved too much is returned.
const TOKEN_BYTES: usize = 3;
/// Tokens that a chat template adds around a message, and around all of them.
const MESSAGE_TOKENS: usize = 8;
const FORMAT_TOKENS: usize = 32;
/// Encoding a token is much faster than computing it, and is charged this fraction.
const ENCODED_PER_TOKEN: usize = 16;

pub(crate) fn demand(requests: &[Request], context: usize) -> Demand {
    let prompts = requests.iter().map(|request| of_prompt(&request.prompt).min(context));
    let answer = |request: &Request| request.max_tokens.unwrap_or(context).min(context);
    Demand {
        prompt_tokens: prompts.sum::<usize>() as u64,
        answers: requests.iter().map(|request| request.choices as u64).sum(),
        answer_tokens: requests.iter().map(answer).max().unwrap_or(0) as u64,
        is_open: requests.iter().any(|request| request.max_tokens.is_none()),
    }
}

pub(crate) fn demand_of_embedding(request: &EmbedRequest, context: usize) -> Demand {
    let tokens = |input: &EmbedInput| match input {
        EmbedInput::Text(text) => (2 + of_text(text)).min(context),
        EmbedInput::Tokens(tokens) => tokens.len().min(context),
    };
    Demand { prompt_tokens: request.inputs.iter().map(tokens).sum::<usize>() as u64, ..Demand::default() }
}

pub(crate) fn demand_of_reranking(request: &RerankRequest, context: usize) -> Demand {
    // With the marks around both texts.
    let query = 4 + of_text(&request.query);
    let document_max = request.document_tokens_max.unwrap_or(usize::MAX);
    let tokens = |document: &String| (query + of_text(document).min(document_max)).min(context);
    Demand { prompt_tokens: request.documents.iter().map(tokens).sum::<usize>() as u64, ..Demand::default() }
}

/// Returns the charge of text that was only encoded or decoded.
pub(crate) fn of_encoding(tokens: usize) -> u64 {
    tokens.div_ceil(ENCODED_PER_TOKEN) as u64
}

/// Estimates the tokens of a text.
pub(crate) fn of_text(text: &str) -> usize {
    text.len().div_ceil(TOKEN_BYTES)
}

/// Estimates the tokens of a prompt, rather too many.
pub(crate) fn of_prompt(prompt: &Prompt) -> usize {
    let message = |message: &Message| {
        let calls = message.tool_calls.iter().map(|call| of_text(&call.name) + of_text(&call.arguments));
        MESSAGE_TOKENS + of_text(&message.content) + calls.sum::<usize>()
    };
    match prompt {
        Prompt::Text(text) => of_text(text),
        Prompt::Tokens(tokens) => tokens.len(),
        Prompt::Messages(messages) => FORMAT_TOKENS + messages.iter().map(message).sum::<usize>(),
    }
}
