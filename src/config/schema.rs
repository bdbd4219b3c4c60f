//! The keys of all commands: their long flags.

use clap::{Arg, ArgAction, Command};

/// One flag of one command.
#[derive(Clone, Debug)]
pub struct Key {
    /// Name in the file: `max_tokens`.
    pub name: String,
    pub flag: Arg,
}

impl Key {
    pub fn is_switch(&self) -> bool {
        matches!(self.flag.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
    }

    pub fn takes_many(&self) -> bool {
        matches!(self.flag.get_action(), ArgAction::Append)
    }

    pub fn defaults(&self) -> Vec<String> {
        self.flag.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect()
    }
}

/// Returns the flags of the command itself. Positional arguments are not keys: they say what to do, not how.
pub fn keys_of(command: &Command) -> Vec<Key> {
    let flags = command.get_arguments().filter(|flag| {
        let is_own = !flag.is_global_set() && !matches!(flag.get_id().as_str(), "help" | "version");
        is_own && flag.get_long().is_some()
    });
    let key = |flag: &Arg| {
        let long = flag.get_long()?;
        Some(Key { name: long.replace('-', "_"), flag: flag.clone() })
    };
    flags.filter_map(key).collect()
}

/// Returns all commands that can be run, with their path: `["keys", "add"]`.
pub fn runnable_commands(root: &Command) -> Vec<(Vec<String>, &Command)> {
    let mut found = Vec::new();
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = command.get_name().to_owned();
        let inner = runnable_commands(command);
        // Some commands have both flags and subcommands.
        if inner.is_empty() || !keys_of(command).is_empty() {
            found.push((vec![name.clone()], command));
        }
        found.extend(inner.into_iter().map(|(path, inner)| ([vec![name.clone()], path].concat(), inner)));
    }
    found
}

/// Returns the command at a path.
pub fn find<'c>(root: &'c Command, path: &[String]) -> Option<&'c Command> {
    path.iter().try_fold(root, |command, name| command.find_subcommand(name))
}
