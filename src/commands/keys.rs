//! `ruvllm keys`: the API keys of a server.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ruvllm_server::access::{KeyFile, Limits, LocalToken, NewKey, Scope, Scopes, StoredKey, Timestamp};
use ruvllm_store::default_home;
use serde_json::{Value, json};

use crate::flags::duration::parse_duration;
use crate::output;

/// Add, list, change and remove the API keys of `ruvllm serve`
///
/// Without any key, everybody who can reach the server may use its models. Once the last key is removed, nobody may. A
/// running server picks up changes at once.
#[derive(Debug, Args)]
pub struct Keys {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Add(Add),
    Set(Set),
    List(List),
    Rm(Rm),
    Token(Token),
}

/// Create a key and print it once; only its hash is stored
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm keys add laptop\n  \
                        ruvllm keys add search --tenant acme/search --requests-per-minute 60 --expires 30d\n  \
                        ruvllm keys add prometheus --scope metrics")]
struct Add {
    /// Name of the key
    name: String,
    /// What the key allows: inference, metrics, admin (everything); separate several with commas
    #[arg(long, value_name = "SCOPES", value_delimiter = ',', default_value = "inference")]
    scope: Vec<Scope>,
    /// Tenant of the key, such as acme/search. Tenants share the machine fairly and cannot see each other's data
    /// [default: the key is its own tenant]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    tenant: String,
    /// Maximum requests per minute
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u32>,
    /// Maximum tokens per minute, of prompts and answers
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<u32>,
    /// Maximum tokens per day; a day starts at midnight UTC
    #[arg(long, value_name = "N")]
    tokens_per_day: Option<u64>,
    /// Lifetime of the key, such as 30d
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
    #[command(flatten)]
    learn: LearnFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Whether requests with a key are kept to learn from.
#[derive(Debug, Args)]
struct LearnFlags {
    /// Keep texts and token ids of its requests and answers to learn from [default: as `ruvllm serve` is told]
    #[arg(long)]
    learn: bool,
    /// Never keep them, even if the server runs with --learn
    #[arg(long, conflicts_with = "learn")]
    no_learn: bool,
}

impl LearnFlags {
    /// Returns `None` if it is left to the server.
    fn choice(&self) -> Option<bool> {
        match (self.learn, self.no_learn) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            (false, false) => None,
        }
    }
}

/// Change whether requests with a key are kept to learn from
///
/// What was kept before stays: `ruvllm learn forget` removes it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm keys set laptop --no-learn\n  ruvllm keys set laptop --learn-default")]
struct Set {
    /// Name of the key
    name: String,
    #[command(flatten)]
    learn: LearnFlags,
    /// Leave it to the server again
    #[arg(long, conflicts_with_all = ["learn", "no_learn"], required_unless_present_any = ["learn", "no_learn"])]
    learn_default: bool,
}

/// List the keys
#[derive(Debug, Args)]
struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Remove a key
#[derive(Debug, Args)]
struct Rm {
    /// Name of the key, as shown by `ruvllm keys list`
    #[arg(required = true)]
    names: Vec<String>,
}

/// Print the token of this machine's operator
///
/// `ruvllm serve` creates it when it starts, one for all servers of the home folder, in a file that only you can read.
/// It allows everything, with and without keys. `ruvllm ps` and `ruvllm cache` use it automatically. To change it,
/// delete the file `local_token` in the home folder and restart the servers.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  curl http://127.0.0.1:8080/v1/sessions -H \"Authorization: Bearer $(ruvllm keys token)\""
)]
struct Token {}

pub fn key_file() -> Result<KeyFile> {
    Ok(KeyFile::in_home(&default_home()?))
}

impl Keys {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::Add(add) => add.execute(),
            What::Set(set) => Ok(key_file()?.set_learning(&set.name, set.learn.choice())?),
            What::List(list) => list.execute(),
            What::Rm(rm) => rm.execute(),
            What::Token(Token {}) => output::line(LocalToken::read(&default_home()?)?.text()),
        }
    }
}

impl Add {
    fn execute(self) -> Result<()> {
        let key = NewKey::random().context("this system provides no random numbers")?;
        let stored = StoredKey::new(&self.name, &key, Scopes::new(self.scope));
        let expires = self.expires.map(|time| stored.created.after(time));
        let limits = Limits {
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            tokens_per_day: self.tokens_per_day,
        };
        let learn = self.learn.choice();
        let stored = StoredKey { tenant: self.tenant, limits, expires, learn, ..stored };
        key_file()?.add(stored.clone())?;
        if self.json {
            let mut object = to_json(&stored);
            object["key"] = json!(key.text());
            return output::json(&object);
        }
        output::line(key.text())?;
        output::remark("the key is shown only this once");
        Ok(())
    }
}

impl List {
    fn execute(self) -> Result<()> {
        let file = key_file()?;
        let read = file.read()?;
        let are_needed = read.is_some();
        let keys = read.unwrap_or_default();
        if self.json {
            return output::json(&json!({ "keys": keys.iter().map(to_json).collect::<Vec<_>>() }));
        }
        if keys.is_empty() {
            if are_needed {
                warn_of_none_left(&file);
            } else {
                output::remark("there are no keys: everybody who can reach a server may use it");
            }
            return Ok(());
        }
        let mut rows = vec![["NAME", "SCOPES", "TENANT", "LIMITS", "EXPIRES", "LEARN"].map(str::to_owned).to_vec()];
        rows.extend(keys.iter().map(|key| {
            let scopes = key.scopes.to_string();
            vec![key.name.clone(), scopes, key.tenant().to_owned(), limits(&key.limits), expiry(key), learning(key)]
        }));
        output::table(&rows)
    }
}

fn limits(limits: &Limits) -> String {
    let parts = [
        limits.requests_per_minute.map(|count| format!("{count} requests/min")),
        limits.tokens_per_minute.map(|count| format!("{count} tokens/min")),
        limits.tokens_per_day.map(|count| format!("{count} tokens/day")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn expiry(key: &StoredKey) -> String {
    match key.expires {
        None => "never".to_owned(),
        Some(_) if key.is_expired(Timestamp::now()) => "expired".to_owned(),
        Some(expires) => expires.to_string(),
    }
}

fn learning(key: &StoredKey) -> String {
    match key.learn {
        None => "default",
        Some(true) => "yes",
        Some(false) => "no",
    }
    .to_owned()
}

fn to_json(key: &StoredKey) -> Value {
    json!({
        "name": key.name,
        "scopes": key.scopes,
        "tenant": key.tenant(),
        "requests_per_minute": key.limits.requests_per_minute,
        "tokens_per_minute": key.limits.tokens_per_minute,
        "tokens_per_day": key.limits.tokens_per_day,
        "created": key.created.to_string(),
        "expires": key.expires.map(|expires| expires.to_string()),
        "learn": key.learn,
        "expired": key.is_expired(Timestamp::now()),
    })
}

impl Rm {
    fn execute(self) -> Result<()> {
        let file = key_file()?;
        for name in &self.names {
            let left = file.remove(name)?;
            output::line(&format!("removed {name}"))?;
            if left == 0 {
                warn_of_none_left(&file);
            }
        }
        Ok(())
    }
}

fn warn_of_none_left(file: &KeyFile) {
    output::remark(&format!(
        "no key is left, so a server lets nobody in: create one with `ruvllm keys add NAME`, or delete {} and restart \
         the server to let in everybody who can reach it",
        file.path().display()
    ));
}
