//! `ruvllm sessions`: stored conversations.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use ruvllm_memory::{Memory, Session, SessionQuery};
use ruvllm_runtime::Message;
use serde_json::json;

use super::run::Run;
use crate::flags::memory::MemoryLocationFlags;
use crate::flags::session::SessionFlags;
use crate::output::{self, times};

/// List, show, resume and remove conversations
///
/// A request with a session (`"session": "NAME"` in a chat request, or `ruvllm run --session NAME`) continues the
/// conversation of that name, even after a restart.
#[derive(Debug, Args)]
pub struct Sessions {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    List(List),
    Show(Show),
    Resume(Box<Resume>),
    Rm(Rm),
}

/// List sessions, the most recent first
#[derive(Debug, Args)]
struct List {
    /// Only sessions of this tenant [default: all]
    #[arg(long, value_name = "PATH")]
    tenant: Option<String>,
    /// Only sessions that this end user began
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Maximum number of sessions
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    limit: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Show a session and its messages
#[derive(Debug, Args)]
struct Show {
    /// Name of the session
    name: String,
    /// Tenant of the session
    #[arg(long, value_name = "PATH", default_value = "")]
    tenant: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Continue a session in the terminal, with its own model
#[derive(Debug, Args)]
struct Resume {
    /// Name of the session
    name: String,
    /// The prompt; without it, chat
    prompt: Option<String>,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Delete sessions
#[derive(Debug, Args)]
struct Rm {
    /// Names of the sessions
    #[arg(required = true)]
    names: Vec<String>,
    /// Tenant of the sessions
    #[arg(long, value_name = "PATH", default_value = "")]
    tenant: String,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Sessions {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::List(command) => command.execute(),
            What::Show(command) => command.execute(),
            What::Resume(command) => command.execute(),
            What::Rm(command) => command.execute(),
        }
    }
}

impl List {
    fn execute(self) -> Result<()> {
        let count_max = self.limit as usize;
        let query = SessionQuery { tenant: self.tenant, user: self.user, count_max, ..SessionQuery::default() };
        let sessions = self.memory.open()?.sessions().list(&query)?;
        if self.json {
            return output::json(&json!({ "sessions": sessions }));
        }
        if sessions.is_empty() {
            output::remark("there are no sessions; `ruvllm run MODEL --session NAME` starts one");
            return Ok(());
        }
        let mut rows =
            vec![["NAME", "TENANT", "USER", "MODEL", "TURNS", "TOKENS", "LAST ACTIVE"].map(str::to_owned).to_vec()];
        rows.extend(sessions.iter().map(|session| {
            let tokens = session.kv.as_ref().map_or_else(String::new, |kv| kv.tokens.to_string());
            let name = output::printable(&session.name);
            let turns = session.turns.to_string();
            let user = output::printable(session.user.as_deref().unwrap_or_default());
            vec![
                name,
                session.tenant.clone(),
                user,
                session.model.clone(),
                turns,
                tokens,
                times::ago(session.active_ms),
            ]
        }));
        output::table(&rows)
    }
}

fn find(memory: &Memory, tenant: &str, name: &str) -> Result<Session> {
    match memory.sessions().get(tenant, name)? {
        Some(session) => Ok(session),
        None => bail!("there is no session {name:?}; `ruvllm sessions list` shows all"),
    }
}

impl Show {
    fn execute(self) -> Result<()> {
        let session = find(&self.memory.open()?, &self.tenant, &self.name)?;
        if self.json {
            return output::json(&json!(session));
        }
        let kv = session.kv.as_ref().map_or_else(String::new, |kv| {
            let place = kv.place.as_deref().map_or_else(String::new, |place| format!(" in {place}"));
            format!("{} tokens, {} ({}){place}", kv.tokens, kv.tier, kv.precision)
        });
        let rows = [
            ("name", session.name.clone()),
            ("tenant", session.tenant.clone()),
            ("user", session.user.clone().unwrap_or_default()),
            ("model", session.model.clone()),
            ("adapter", session.adapter.clone().unwrap_or_default()),
            ("turns", session.turns.to_string()),
            ("begun", format!("{} UTC", times::moment(session.created_ms))),
            ("active", format!("{} UTC", times::moment(session.active_ms))),
            ("kv", kv),
        ];
        let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
        output::table(&rows.map(|(name, value)| vec![name.to_owned(), output::printable(&value)]).collect::<Vec<_>>())?;
        for message in session.messages.iter().filter_map(Message::from_json) {
            output::line("")?;
            output::line(&format!("{}: {}", message.role, output::printable(message.content.trim())))?;
            for call in &message.tool_calls {
                output::line(&output::printable(&format!("calls {}({})", call.name, call.arguments)))?;
            }
        }
        Ok(())
    }
}

impl Resume {
    fn execute(self) -> Result<()> {
        let model = find(&self.memory.open()?, "", &self.name)?.model;
        let session = SessionFlags { session: Some(self.name), learn: false, no_recall: false, memory: self.memory };
        Run::resume(model, self.prompt, session).execute()
    }
}

impl Rm {
    fn execute(self) -> Result<()> {
        let memory = self.memory.open()?;
        for name in &self.names {
            // All must exist before any is deleted.
            find(&memory, &self.tenant, name)?;
        }
        for name in &self.names {
            memory.sessions().remove(&self.tenant, name)?;
        }
        Ok(())
    }
}
