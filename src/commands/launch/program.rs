//! The programs that can be launched, and what each must be told.

use anyhow::Result;
use clap::ValueEnum;
use serde_json::json;

use crate::output;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// OpenCode
    Opencode,
    /// Qwen Code
    Qwen,
}

/// A command with its arguments and environment variables.
#[derive(Debug)]
pub struct Invocation {
    pub program: &'static str,
    pub arguments: Vec<String>,
    pub variables: Vec<(&'static str, String)>,
}

impl Program {
    pub fn how_to_install(self) -> &'static str {
        match self {
            Self::Claude => "install it with `npm install -g @anthropic-ai/claude-code`",
            Self::Codex => "install it with `npm install -g @openai/codex`",
            Self::Opencode => "install it with `npm install -g opencode-ai`",
            Self::Qwen => "install it with `npm install -g @qwen-code/qwen-code`",
        }
    }

    /// Returns the command that uses a model of a server.
    pub fn invocation(
        self,
        url: &str,
        model: &str,
        key: &str,
        context: Option<u64>,
        arguments: &[String],
    ) -> Invocation {
        let (program, mut own, variables) = match self {
            Self::Claude => ("claude", Vec::new(), claude(url, model, key)),
            Self::Codex => ("codex", codex(url, model, context), vec![("RUVLLM_API_KEY", key.to_owned())]),
            Self::Opencode => ("opencode", Vec::new(), opencode(url, model, key, context)),
            Self::Qwen => ("qwen", Vec::new(), qwen(url, model, key)),
        };
        own.extend(arguments.iter().cloned());
        Invocation { program, arguments: own, variables }
    }
}

/// Every kind of model that it asks for is this one.
fn claude(url: &str, model: &str, key: &str) -> Vec<(&'static str, String)> {
    let models = [
        "ANTHROPIC_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL",
    ];
    let mut variables = vec![("ANTHROPIC_BASE_URL", url.to_owned()), ("ANTHROPIC_AUTH_TOKEN", key.to_owned())];
    variables.extend(models.map(|name| (name, model.to_owned())));
    // What is sent to others, and what changes in every prompt, which would keep it out of the prefix cache.
    variables.extend(
        [
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0"),
            ("DISABLE_TELEMETRY", "1"),
        ]
        .map(|(name, value)| (name, value.to_owned())),
    );
    variables
}

/// Its settings are arguments; values are TOML.
fn codex(url: &str, model: &str, context: Option<u64>) -> Vec<String> {
    let mut settings = vec![
        ("model", json!(model)),
        ("model_provider", json!("ruvllm")),
        ("model_providers.ruvllm.name", json!("RuvLLM")),
        ("model_providers.ruvllm.base_url", json!(format!("{url}/v1"))),
        ("model_providers.ruvllm.wire_api", json!("responses")),
        ("model_providers.ruvllm.env_key", json!("RUVLLM_API_KEY")),
    ];
    settings.extend(context.map(|tokens| ("model_context_window", json!(tokens))));
    settings.into_iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]).collect()
}

fn opencode(url: &str, model: &str, key: &str, context: Option<u64>) -> Vec<(&'static str, String)> {
    let mut entry = json!({ "name": model });
    if let Some(context) = context {
        entry["limit"] = json!({ "context": context, "output": context / 4 });
    }
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": "RuvLLM",
        "options": { "baseURL": format!("{url}/v1"), "apiKey": key },
        "models": { model: entry },
    });
    let name = format!("ruvllm/{model}");
    let config = json!({ "provider": { "ruvllm": provider }, "model": name, "small_model": name });
    vec![("OPENCODE_CONFIG_CONTENT", config.to_string())]
}

fn qwen(url: &str, model: &str, key: &str) -> Vec<(&'static str, String)> {
    vec![
        ("OPENAI_BASE_URL", format!("{url}/v1")),
        ("OPENAI_API_KEY", key.to_owned()),
        ("OPENAI_MODEL", model.to_owned()),
    ]
}

impl Invocation {
    /// Prints it as a shell would take it.
    pub fn print(&self) -> Result<()> {
        for (name, value) in &self.variables {
            output::line(&format!("export {name}={}", quoted(value)))?;
        }
        let words: Vec<String> = self.arguments.iter().map(|word| quoted(word)).collect();
        output::line([self.program.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ").as_str())
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_told_the_server_and_the_model() {
        for program in [Program::Claude, Program::Codex, Program::Opencode, Program::Qwen] {
            let own = ["-p".to_owned(), "Say \"hello\"".to_owned()];
            let Invocation { arguments, variables, .. } =
                program.invocation("http://127.0.0.1:8080", "a:b", "secret", Some(32768), &own);
            assert!(arguments.ends_with(&own), "{program:?}");
            let all: String = arguments.iter().chain(variables.iter().map(|(_, value)| value)).cloned().collect();
            for told in ["http://127.0.0.1:8080", "a:b", "secret"] {
                assert!(all.contains(told), "{program:?} is not told {told}");
            }
        }
    }

    #[test]
    fn what_is_printed_can_be_pasted() {
        assert_eq!(quoted("a-b"), "a-b");
        assert_eq!(quoted("it's {\"a\": 1}"), r#"'it'\''s {"a": 1}'"#);
        assert_eq!(quoted(""), "''");
    }
}
