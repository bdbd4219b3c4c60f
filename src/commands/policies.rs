//! `ruvllm policies`: parameters that apply where a request leaves them unset.

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use ruvllm_memory::{Memory, Policy, default_policies};
use ruvllm_runtime::check_policy;
use serde_json::{Value, json};

use crate::flags::memory::MemoryLocationFlags;
use crate::loading::embedding;
use crate::output::{self, times};

/// List, show, set and remove policies
///
/// A policy of the type router sets what requests leave unset: temperature, top_p and max_tokens. A policy named after
/// a model applies to that model, `default` to all others. A running server picks up changes within seconds.
#[derive(Debug, Args)]
pub struct Policies {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    List(List),
    Show(Show),
    Set(Set),
    Rm(Rm),
}

/// List the policies in effect, with the built-in ones
#[derive(Debug, Args)]
struct List {
    /// For this tenant [default: for all]
    #[arg(long, value_name = "PATH", default_value = "")]
    tenant: String,
    /// Only this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Show a policy
#[derive(Debug, Args)]
struct Show {
    /// Type and name, such as router/default
    #[arg(value_name = "TYPE/NAME")]
    policy: String,
    /// For this tenant [default: for all]
    #[arg(long, value_name = "PATH", default_value = "")]
    tenant: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Set a policy
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm policies set router/smollm2 '{\"temperature\": 0.2}'\n  \
                        ruvllm policies set router/default '{\"max_tokens\": 512}' --tenant acme")]
struct Set {
    /// Type and name, such as router/default
    #[arg(value_name = "TYPE/NAME")]
    policy: String,
    /// Parameters as a JSON object
    #[arg(value_name = "JSON")]
    parameters: String,
    /// Description: `ruvllm memory search` finds the policy by it
    #[arg(long, value_name = "TEXT")]
    about: Option<String>,
    /// Confidence from 0 to 1
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    confidence: f64,
    /// For this tenant [default: for all]
    #[arg(long, value_name = "PATH", default_value = "")]
    tenant: String,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Remove a policy; a built-in one of the same name takes effect again
#[derive(Debug, Args)]
struct Rm {
    /// Type and name, such as router/default
    #[arg(value_name = "TYPE/NAME")]
    policy: String,
    /// Of this tenant [default: the one for all]
    #[arg(long, value_name = "PATH", default_value = "")]
    tenant: String,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Policies {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::List(command) => command.execute(),
            What::Show(command) => command.execute(),
            What::Set(command) => command.execute(),
            What::Rm(command) => command.execute(),
        }
    }
}

fn split(policy: &str) -> Result<(String, String)> {
    let (kind, name) = policy.split_once('/').context("expected a type and a name, such as router/default")?;
    Ok((kind.to_owned(), name.to_owned()))
}

impl List {
    fn execute(self) -> Result<()> {
        let in_force: Vec<Policy> = match self.memory.open_if_exists()? {
            Some(memory) => memory.policies().in_force(&self.tenant)?.values().cloned().collect(),
            None => default_policies(),
        };
        let asked: Vec<&Policy> =
            in_force.iter().filter(|policy| self.kind.as_ref().is_none_or(|kind| policy.kind == *kind)).collect();
        if self.json {
            return output::json(&json!({ "policies": asked }));
        }
        let mut rows = vec![["POLICY", "TENANT", "SOURCE", "CONFIDENCE", "PARAMETERS"].map(str::to_owned).to_vec()];
        rows.extend(asked.iter().map(|policy| {
            vec![
                format!("{}/{}", policy.kind, policy.name),
                policy.tenant.clone(),
                source(policy),
                format!("{:.2}", policy.confidence),
                output::printable(&policy.parameters.to_string()),
            ]
        }));
        output::table(&rows)
    }
}

fn source(policy: &Policy) -> String {
    json!(policy.source).as_str().unwrap_or_default().to_owned()
}

fn find(memory: Option<&Memory>, tenant: &str, policy: &str) -> Result<Policy> {
    let (kind, name) = split(policy)?;
    let found = match memory {
        Some(memory) => memory.policies().in_force(tenant)?.get(&(kind, name)).cloned(),
        None => default_policies().into_iter().find(|policy| policy.kind == kind && policy.name == name),
    };
    match found {
        Some(found) => Ok(found),
        None => bail!("there is no policy {policy:?}; `ruvllm policies list` shows all"),
    }
}

impl Show {
    fn execute(self) -> Result<()> {
        let policy = find(self.memory.open_if_exists()?.as_ref(), &self.tenant, &self.policy)?;
        if self.json {
            return output::json(&json!(policy));
        }
        let moment = |at_ms: i64| if at_ms == 0 { String::new() } else { format!("{} UTC", times::moment(at_ms)) };
        let rows = [
            ("policy", format!("{}/{}", policy.kind, policy.name)),
            ("tenant", policy.tenant.clone()),
            ("source", source(&policy)),
            ("confidence", format!("{:.2}", policy.confidence)),
            ("created", moment(policy.created_ms)),
            ("last used", moment(policy.accessed_ms)),
            ("parameters", output::printable(&policy.parameters.to_string())),
        ];
        let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
        output::table(&rows.map(|(name, value)| vec![name.to_owned(), value]).collect::<Vec<_>>())
    }
}

impl Set {
    fn execute(self) -> Result<()> {
        let (kind, name) = split(&self.policy)?;
        let parameters: Value = serde_json::from_str(&self.parameters).context("the parameters are not JSON")?;
        let policy =
            Policy { tenant: self.tenant, confidence: self.confidence, ..Policy::new(&kind, &name, parameters) };
        check_policy(&policy)?;
        // Setting a policy creates the memory if necessary.
        let memory = Memory::open(self.memory.options()?)?;
        let about = self.about.map(|text| embedding::embed_text(&memory, &text)).transpose()?;
        memory.policies().put(&policy, about.as_deref())?;
        Ok(())
    }
}

impl Rm {
    fn execute(self) -> Result<()> {
        let (kind, name) = split(&self.policy)?;
        if !self.memory.open()?.policies().remove(&self.tenant, &kind, &name)? {
            bail!("{:?} was never set; built-in policies cannot be removed", self.policy);
        }
        Ok(())
    }
}
