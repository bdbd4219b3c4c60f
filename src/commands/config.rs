//! `ruvllm config`: the settings and where they come from.

use anyhow::{Result, bail};
use clap::{Args, Command, CommandFactory, Subcommand};
use serde_json::{Value, json};

use crate::config::{Setting, Sources, keys_of, location, redacted, runnable_commands};
use crate::{Cli, output};

/// Show the settings of the configuration file and the environment
#[derive(Debug, Args)]
#[command(
    after_help = "Every flag of every command can be set in config.toml, with underscores: at the top level for all \
                  commands that\nhave it, or in a table for one command:\n\n  threads = 4\n\n  [serve]\n  port = \
                  8081\n\nRUVLLM_THREADS=4 and RUVLLM_SERVE_PORT=8081 do the same. The command line overrides \
                  variables, and variables\noverride the file. --json=false turns off a flag that a setting such as \
                  json = true turns on."
)]
pub struct Config {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Show(Show),
    Path(Path),
    Check(Check),
}

/// Show the values of all keys
#[derive(Debug, Args)]
struct Show {
    /// Only the keys of this command
    command: Option<String>,
    /// Show where each value comes from
    #[arg(long)]
    origin: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Print the path of the configuration file
#[derive(Debug, Args)]
struct Path {}

/// Check the configuration file and the environment
#[derive(Debug, Args)]
struct Check {}

impl Config {
    /// `file` is the value of `--config`.
    pub fn execute(self, file: Option<std::path::PathBuf>) -> Result<()> {
        // `--config` itself is not a key: subcommands inherit it.
        let mut root = Cli::command();
        root.build();
        match self.what {
            What::Path(_) => output::line(&location(file)?.path.display().to_string()),
            What::Check(_) => {
                let sources = Sources::find(&root, file)?;
                let settings = settings(&root, &sources, None)?;
                let count = settings.iter().filter(|line| line.setting.is_some()).count();
                let from = sources.path().map_or("no file".to_owned(), |path| path.display().to_string());
                output::line(&format!("{from}: {count} settings of commands, all valid"))
            }
            What::Show(show) => show.execute(&root, &Sources::find(&root, file)?),
        }
    }
}

/// A key of a command with its setting.
struct Line {
    command: String,
    key: String,
    defaults: Vec<String>,
    is_switch: bool,
    takes_many: bool,
    setting: Option<Setting>,
}

impl Line {
    fn value(&self) -> Value {
        let values = self.setting.as_ref().map_or(&self.defaults, |setting| &setting.values);
        let values: Vec<String> = values.iter().map(|value| redacted(value)).collect();
        match values.as_slice() {
            values if self.takes_many => json!(values),
            [] => Value::Null,
            [value] if self.is_switch => json!(value == "true"),
            values => number_or_text(&values.join(",")),
        }
    }

    fn origin(&self) -> String {
        match &self.setting {
            Some(setting) => setting.origin.to_string(),
            None => "default".to_owned(),
        }
    }
}

/// Shows a text that looks like a number as that number.
fn number_or_text(text: &str) -> Value {
    let integer = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
    let float = || text.parse::<f64>().ok().filter(|number| number.to_string() == text);
    integer.map(|number| json!(number)).or_else(|| float().map(|number| json!(number))).unwrap_or_else(|| json!(text))
}

fn settings(root: &Command, sources: &Sources, only: Option<&str>) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (path, command) in runnable_commands(root) {
        if only.is_some_and(|only| path[0] != only) {
            continue;
        }
        let set = sources.for_command(root, &path)?;
        lines.extend(keys_of(command).into_iter().map(|key| Line {
            command: path.join("."),
            defaults: key.defaults(),
            is_switch: key.is_switch(),
            takes_many: key.takes_many(),
            setting: set.iter().find(|setting| setting.key == key.name).cloned(),
            key: key.name,
        }));
    }
    Ok(lines)
}

impl Show {
    fn execute(&self, root: &Command, sources: &Sources) -> Result<()> {
        if let Some(command) = &self.command
            && root.find_subcommand(command).is_none()
        {
            bail!("unknown command '{command}'; `ruvllm --help` lists the commands");
        }
        let lines = settings(root, sources, self.command.as_deref())?;
        if self.json {
            let entry = |line: &Line| json!({ "command": line.command, "key": line.key, "value": line.value(), "origin": line.origin() });
            let settings: Vec<Value> = lines.iter().map(entry).collect();
            return output::json(&json!({ "file": sources.path(), "settings": settings }));
        }
        if self.origin {
            let mut rows = vec![["KEY", "VALUE", "ORIGIN"].map(str::to_owned).to_vec()];
            rows.extend(
                lines
                    .iter()
                    .map(|line| vec![format!("{}.{}", line.command, line.key), shown(&line.value()), line.origin()]),
            );
            return output::table(&rows);
        }
        print_as_file(&lines)
    }
}

/// Returns a file with the same settings; keys without a value are comments.
fn print_as_file(lines: &[Line]) -> Result<()> {
    let mut command = "";
    for line in lines {
        if line.command != command {
            let gap = if command.is_empty() { "" } else { "\n" };
            output::line(&format!("{gap}[{}]", line.command))?;
            command = &line.command;
        }
        match line.value() {
            Value::Null => output::line(&format!("# {} =", line.key))?,
            value => output::line(&format!("{} = {value}", line.key))?,
        }
    }
    Ok(())
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
