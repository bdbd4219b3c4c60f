//! `ruvllm run`: answers a prompt, or chats.

mod answerer;
mod chat;
mod report;

use std::hash::{BuildHasher, RandomState};
use std::io::{IsTerminal, Read, stdin};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_runtime::{Message, Prompt, Sampling, Truncation, UnsetParams};

use self::answerer::Answerer;
use crate::flags::adapter::AdapterFlags;
use crate::flags::model::{EngineFlags, ModelFlags};
use crate::flags::sampling::SamplingFlags;
use crate::flags::session::SessionFlags;
use crate::flags::speculation::SpeculationFlag;
use crate::loading::session::StoredSession;
use crate::loading::{build, learned};
use crate::output::{self, progress};

/// Answer a prompt, or chat when none is given
///
/// Fetches the model if necessary. The prompt can also come from standard input.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm run smollm2 \"Why is the sky blue?\"\n  \
                        ruvllm run smollm2 --temperature 0 --json \"Name three colours.\"\n  \
                        cat letter.txt | ruvllm run smollm2 --system \"Summarise the text.\"")]
pub struct Run {
    #[command(flatten)]
    model: ModelFlags,
    /// The prompt; without it, chat
    prompt: Option<String>,
    /// System message: instructions that precede the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Continue the prompt as plain text, without the model's chat template
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    /// Maximum number of tokens to generate [default: 1024, or what the context has room for]
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    /// Stop before this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Drop the oldest messages (or tokens, with --raw) if the prompt does not fit the context, and report how many tokens
    /// were dropped. Without this flag, that is an error
    #[arg(long)]
    truncate: bool,
    /// Speculative decoding: predict draft tokens from the text so far and verify several in one step. The answer is the
    /// same, and faster where it repeats text (copies, code, JSON). auto turns it on for temperatures below 0.5
    #[arg(long, value_enum, default_value_t = SpeculationFlag::Auto, value_name = "WHEN")]
    speculation: SpeculationFlag,
    /// Do not show what a reasoning model writes before its answer
    #[arg(long)]
    hide_reasoning: bool,
    /// Print one JSON object at the end instead of streaming
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingFlags,
    #[command(flatten)]
    session: SessionFlags,
    #[command(flatten)]
    adapters: AdapterFlags,
}

impl Run {
    /// Continues a session with default settings.
    pub fn resume(model: String, prompt: Option<String>, session: SessionFlags) -> Self {
        Self {
            model: ModelFlags { model, engine: EngineFlags::default() },
            prompt,
            system: None,
            raw: false,
            max_tokens: None,
            stop: Vec::new(),
            truncate: false,
            speculation: SpeculationFlag::Auto,
            hide_reasoning: false,
            json: false,
            sampling: SamplingFlags::default(),
            session,
            adapters: AdapterFlags::default(),
        }
    }

    pub fn execute(mut self) -> Result<()> {
        let sampling = self.sampling.sampling(RandomState::new().hash_one(0u8))?;
        let prompt = self.read_prompt()?;
        // The line editor installs its own Ctrl-C handler, so ours must come after it.
        let editor = if prompt.is_none() { Some(chat::editor()?) } else { None };
        let answerer = self.load(sampling)?;
        let before = answerer.stored_messages()?;
        if let Some(editor) = editor {
            return chat::chat(editor, &answerer, self.system, before);
        }
        let response = answerer.answer(self.to_prompt(prompt.unwrap_or_default(), before))?;
        answerer.report(&response)
    }

    /// Returns the prompt from the command line or standard input; `None` starts a chat.
    fn read_prompt(&mut self) -> Result<Option<String>> {
        let prompt = match self.prompt.take() {
            Some(prompt) => Some(prompt),
            None if stdin().is_terminal() => None,
            None => Some(read_stdin()?),
        };
        if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
            bail!("the prompt is empty: give one as an argument or on standard input");
        }
        if prompt.is_none() && (self.raw || self.json) {
            bail!("--raw and --json need a prompt");
        }
        Ok(prompt)
    }

    fn load(&self, sampling: Sampling) -> Result<Answerer> {
        let interrupted = progress::interrupt_flag();
        let file = self.model.file(Arc::clone(&interrupted))?;
        let session = StoredSession::open(&self.session, &file.name)?;
        if session.as_ref().is_some_and(|session| session.name().is_some())
            && (file.settings.system.is_some() || !file.settings.messages.is_empty())
        {
            output::remark("a session begins without the model's own system message; give one with --system");
        }
        let builder = self.model.engine.builder(&file.path)?.sequences(1);
        let builder = session.iter().fold(builder, |builder, session| session.prepare(builder));
        let engine = build(builder, &file.path)?;
        if engine.chooses_tokens() && !self.sampling.unset().seed {
            output::remark(&format!("--seed has no effect: {} chooses tokens by itself", engine.backend()));
        }
        let adapters = if self.adapters.adapter.is_empty() {
            AdapterFlags::of_model(&file.settings.adapters)
        } else {
            self.adapters.clone()
        };
        let (adapter, adapter_label) = match session.as_ref().and_then(StoredSession::learned_from) {
            Some(memory) if adapters.adapter.is_empty() => {
                let files = self.session.memory.learned_files()?;
                learned::hold(memory, &files, &engine, file.base.as_deref().unwrap_or(&file.name))?.unzip()
            }
            _ => (adapters.hold(&engine, &file.name)?, adapters.label()),
        };
        Ok(Answerer {
            adapter,
            adapter_label,
            engine,
            sampling,
            unset: UnsetParams { max_tokens: self.max_tokens.is_none(), ..self.sampling.unset() },
            settings: *file.settings,
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            truncation: if self.truncate { Truncation::DropOldest } else { Truncation::Refuse },
            speculation: self.speculation.into(),
            interrupted,
            is_json: self.json,
            hides_reasoning: self.hide_reasoning,
            session,
        })
    }

    fn to_prompt(&self, text: String, before: Vec<Message>) -> Prompt {
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
