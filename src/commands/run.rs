//! `ruvllm run`: answers a prompt, or chats.

use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Read, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser};
use ruvllm_runtime::{
    Divergence, Engine, FinishReason, Message, Prompt, Request, Response, Sampling, Speculation, Truncation,
};
use serde_json::{Value, json};

use crate::exit::Interrupted;
use crate::kept_session::{KeptSession, SessionFlags};
use crate::memory_flags::MemoryPlaceFlags;
use crate::model_flags::{ModelFlags, build};
use crate::sampling_flags::SamplingFlags;
use crate::speculation_flag::SpeculationFlag;
use crate::{output, progress};

/// Tokens that are generated at most when nothing else is said.
const MAX_TOKENS_DEFAULT: usize = 1024;

/// Answer a prompt, or chat when none is given
///
/// Fetches the model if it is not there yet. The prompt may also come from standard input.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm run smollm2 \"Why is the sky blue?\"\n  \
                        ruvllm run smollm2 --temperature 0 --json \"Name three colours.\"\n  \
                        cat letter.txt | ruvllm run smollm2 --system \"Summarise the text.\"")]
pub struct Run {
    #[command(flatten)]
    model: ModelFlags,
    /// What to answer; without it, chat
    prompt: Option<String>,
    /// Instructions that precede the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Continue the prompt as plain text, without the model's chat format
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    /// Stop after this many tokens [default: 1024, or what the context holds]
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Leave out the oldest messages (or tokens, with --raw) of what does not fit the context, and tell how much it was;
    /// without, that is an error
    #[arg(long)]
    truncate: bool,
    /// Guess tokens ahead from the text so far and check several at once: the same answer, sooner where it repeats
    /// (copies, code, JSON). auto is for temperatures below 0.5
    #[arg(long, value_enum, default_value_t = SpeculationFlag::Auto, value_name = "WHEN")]
    speculation: SpeculationFlag,
    /// Print one JSON object at the end instead of streaming
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingFlags,
    #[command(flatten)]
    session: SessionFlags,
}

/// Only `ruvllm run`, for those who go on with a session.
#[derive(Debug, Parser)]
struct Alone {
    #[command(flatten)]
    run: Run,
}

impl Run {
    /// Goes on with a session, as if nothing else were said.
    pub fn of_session(model: String, name: String, prompt: Option<String>, memory: MemoryPlaceFlags) -> Result<Self> {
        let arguments = ["run".to_owned(), format!("--session={name}"), "--".to_owned(), model];
        let mut run = Alone::try_parse_from(arguments.into_iter().chain(prompt))?.run;
        run.session.memory = memory;
        Ok(run)
    }

    pub fn execute(self) -> Result<()> {
        let sampling = self.sampling.sampling(RandomState::new().hash_one(0u8))?;
        let prompt = match &self.prompt {
            Some(prompt) => Some(prompt.clone()),
            None if stdin().is_terminal() => None,
            None => Some(read_stdin()?),
        };
        if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
            bail!("the prompt is empty: give one as an argument or on standard input");
        }
        if prompt.is_none() && (self.raw || self.json) {
            bail!("--raw and --json need a prompt");
        }
        // The line editor takes over Ctrl-C when it is made, so our handler comes after it.
        let editor = if prompt.is_none() { Some(super::chat::editor()?) } else { None };
        let interrupted = progress::interrupt_flag();
        let file = self.model.file(Arc::clone(&interrupted))?;
        let session = self.session.open(&file.name)?;
        let builder = self.model.engine.builder(&file.path)?.sequences(1);
        let builder = session.iter().fold(builder, |builder, session| session.prepare(builder));
        let mut engine = build(builder, &file.path)?;
        let mut answerer = Answerer {
            engine: &mut engine,
            sampling,
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            truncation: if self.truncate { Truncation::DropOldest } else { Truncation::Refuse },
            speculation: self.speculation.into(),
            interrupted,
            is_json: self.json,
            session,
        };
        let before = answerer.before()?;
        if let Some(editor) = editor {
            return super::chat::chat(editor, &mut answerer, self.system, before);
        }
        let response = answerer.answer(self.prompt(prompt.unwrap_or_default(), before))?;
        answerer.report(&response)
    }

    fn prompt(&self, text: String, before: Vec<Message>) -> Prompt {
        if self.raw {
            return Prompt::Text(text);
        }
        let system = self.system.iter().map(|system| Message::system(system));
        let system = system.filter(|system| !before.contains(system)).collect::<Vec<_>>();
        Prompt::Messages(before.into_iter().chain(system).chain([Message::user(&text)]).collect())
    }
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    stdin().read_to_string(&mut text).context("the prompt on standard input is not UTF-8 text")?;
    Ok(text)
}

/// Answers prompts with the settings of one command line.
#[derive(Debug)]
pub struct Answerer<'e> {
    pub engine: &'e mut Engine,
    sampling: Sampling,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    truncation: Truncation,
    speculation: Speculation,
    pub interrupted: Arc<AtomicBool>,
    is_json: bool,
    /// Where the conversation is kept, if it is.
    session: Option<KeptSession>,
}

impl Answerer<'_> {
    /// What was said before, where the conversation goes on.
    fn before(&self) -> Result<Vec<Message>> {
        self.session.as_ref().map_or_else(|| Ok(Vec::new()), KeptSession::messages)
    }

    /// Streams the answer to standard output, unless it is wanted as JSON. Ctrl-C ends the answer.
    pub fn answer(&mut self, prompt: Prompt) -> Result<Response> {
        let tokens = self.engine.encode(&prompt)?;
        let context = self.engine.context();
        // What is left out makes room for an answer of some length.
        let least = if self.truncation == Truncation::DropOldest { (context / 4).max(1) } else { 1 };
        let room = context.saturating_sub(tokens.len()).max(least);
        let request = Request {
            sampling: self.sampling.clone(),
            max_tokens: Some(self.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT.min(room))),
            stop: self.stop.clone(),
            truncation: self.truncation,
            speculation: self.speculation,
            ..Request::new(prompt)
        };
        let mut stream = match (&self.session, &request.prompt) {
            (Some(session), Prompt::Messages(messages)) => {
                let messages = messages.clone();
                session.stream(self.engine, request, &messages)?
            }
            _ => self.engine.stream(request)?,
        };
        for piece in &mut stream {
            let piece = piece?;
            if !self.is_json {
                output::piece(&output::printable(piece.text()))?;
            }
            if self.interrupted.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(stream.into_response())
    }

    fn report(&self, response: &Response) -> Result<()> {
        let Some(reason) = response.finish_reason else {
            output::line("")?;
            return Err(Interrupted.into());
        };
        if self.is_json {
            return output::json(&self.to_json(response, reason));
        }
        output::line("")?;
        output::remark(&summary(response));
        if reason == FinishReason::Length {
            output::remark("the answer was cut off at the token limit: raise --max-tokens or --context");
        }
        Ok(())
    }

    fn to_json(&self, response: &Response, reason: FinishReason) -> Value {
        let (usage, timings) = (response.usage, response.timings);
        let mut object = json!({
            "text": response.text,
            "tokens": response.tokens,
            "finish_reason": match reason { FinishReason::Stop => "stop", FinishReason::Length => "length" },
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "truncated_prompt_tokens": usage.truncated_tokens,
                "prompt_tokens_details": { "cached_tokens": usage.cached_tokens, "loaded_tokens": usage.loaded_tokens },
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "steps": usage.steps,
                "drafted_tokens": usage.drafted_tokens,
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
            let token = |id: u32, logprob: f32| {
                let text = String::from_utf8_lossy(self.engine.tokenizer().token_bytes(id));
                json!({ "token": id, "text": text, "logprob": logprob })
            };
            let each = response.tokens.iter().zip(&response.logprobs).map(|(id, (logprob, top))| {
                let mut chosen = token(*id, *logprob);
                chosen["top"] = top.iter().map(|other| token(other.token, other.logprob)).collect();
                chosen
            });
            object["logprobs"] = each.collect();
        }
        object
    }
}

/// One line on how fast it was.
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
        line = format!("{} tokens of the prompt did not fit and were left out; {line}", usage.truncated_tokens);
    }
    if usage.drafted_tokens > 0 {
        let (right, all) = (usage.accepted_tokens, usage.drafted_tokens);
        line.push_str(&format!(" in {} steps ({right} of {all} guessed tokens right)", usage.steps));
    }
    line
}
