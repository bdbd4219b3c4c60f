//! Settings from a file and from environment variables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A home folder with a configuration file, and commands that see nothing else.
struct Home {
    folder: TempDir,
}

impl Home {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("config.toml"), config).expect("a file");
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self) -> PathBuf {
        self.path().join("config.toml")
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RUVLLM_")) {
            command.env_remove(name);
        }
        command.args(arguments).env("RUVLLM_HOME", self.path()).envs(variables.iter().copied());
        command.output().expect("the program starts")
    }

    /// The value and origin that `config show` has for a key.
    fn shown(&self, command: &str, key: &str, variables: &[(&str, &str)]) -> (Value, String) {
        let output = self.run(&["config", "show", "--json"], variables);
        let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let settings = all["settings"].as_array().expect("settings");
        let found = settings.iter().find(|setting| setting["command"] == command && setting["key"] == key);
        let found = found.unwrap_or_else(|| panic!("{command}.{key} in {all}"));
        (found["value"].clone(), found["origin"].as_str().expect("an origin").to_owned())
    }

    /// What is said of a configuration that is wrong.
    fn complaint(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.run(arguments, variables);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }
}

fn is_json(output: &Output) -> bool {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice::<Value>(&output.stdout).is_ok()
}

#[test]
fn what_is_more_particular_wins_and_the_command_line_wins_over_all() {
    let home = Home::new("threads = 1\n\n[run]\nthreads = 2\n");
    let file = home.file().display().to_string();
    let general = ("RUVLLM_THREADS", "3");
    let particular = ("RUVLLM_RUN_THREADS", "4");
    assert_eq!(home.shown("bench", "threads", &[]), (1.into(), format!("{file}, line 1")));
    assert_eq!(home.shown("run", "threads", &[]), (2.into(), format!("{file}, line 4")));
    assert_eq!(home.shown("run", "threads", &[general]).0, 3);
    let (value, origin) = home.shown("run", "threads", &[general, particular]);
    assert_eq!((value, origin.as_str()), (4.into(), "environment variable RUVLLM_RUN_THREADS"));
    assert_eq!(home.shown("bench", "threads", &[general, particular]).0, 3);
    assert_eq!(home.shown("run", "temperature", &[]).1, "default");
}

#[test]
fn settings_take_effect_and_flags_undo_them() {
    let home = Home::new("json = true\n");
    assert!(is_json(&home.run(&["list"], &[])));
    assert!(!is_json(&home.run(&["list", "--json=false"], &[])));
    assert!(is_json(&home.run(&["list", "--json"], &[])));
    assert!(!is_json(&home.run(&["list"], &[("RUVLLM_JSON", "false")])));
    assert!(!is_json(&home.run(&["list"], &[("RUVLLM_LIST_JSON", "0")])));
    let other = home.path().join("other.toml");
    fs::write(&other, "[list]\njson = false\n").unwrap();
    let other = other.to_str().unwrap();
    assert!(!is_json(&home.run(&["list", "--config", other], &[])));
    assert!(!is_json(&home.run(&["--config", other, "list"], &[])));
    assert!(!is_json(&home.run(&["list"], &[("RUVLLM_CONFIG", other)])));
}

#[test]
fn commands_below_commands_have_tables_below_tables() {
    let home = Home::new("[keys]\njson = true\n\n[keys.add]\nscope = [\"metrics\", \"inference\"]\n");
    let made = home.run(&["keys", "add", "one"], &[]);
    assert!(is_json(&made), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(made["scopes"], serde_json::json!(["inference", "metrics"]));
    assert!(is_json(&home.run(&["keys", "list"], &[])));
}

#[test]
fn keys_that_nobody_knows_are_errors_with_a_suggestion() {
    for (config, line, suggestion) in [
        ("temprature = 1\n", 1, "did you mean 'temperature'?"),
        ("threads = 1\n[run]\ntop-k = 5\n", 3, "did you mean 'top_k'?"),
        ("[sarve]\nport = 1\n", 1, "did you mean 'serve'?"),
        ("[list]\ntemperature = 1.0\n", 2, "`ruvllm config show` lists all keys"),
        ("[keys.ad]\nscope = \"admin\"\n", 1, "did you mean 'add'?"),
    ] {
        let home = Home::new(config);
        let said = home.complaint(&["list"], &[]);
        let place = format!("{}, line {line}: ", home.file().display());
        assert!(said.contains(&place) && said.contains(suggestion), "{config}: {said}");
        assert_eq!(home.complaint(&["config", "check"], &[]), said);
    }
}

#[test]
fn values_that_do_not_fit_are_errors_with_the_place() {
    for (config, line, why) in [
        ("[serve]\nport = 70000\n", 2, "'port' cannot be '70000': 70000 is not in 0..=65535"),
        ("[serve]\n\nport = \"http\"\n", 3, "'port' cannot be 'http'"),
        ("[serve]\nport = [1, 2]\n", 2, "'port' must be a text or a number, not a list"),
        ("[serve]\nlog_format = \"xml\"\n", 2, "must be one of text, json"),
        ("[serve]\nheader_timeout = \"10 weeks\"\n", 2, "such as 30s"),
        ("json = \"yes\"\n", 1, "'json' must be true or false"),
        ("[serve]\nmax_connections = 0\n", 2, "0 is not in 1.."),
        ("port = \n", 1, ""),
    ] {
        let home = Home::new(config);
        let said = home.complaint(&["config", "check"], &[]);
        let place = format!("{}, line {line}: ", home.file().display());
        assert!(said.contains(&place) && said.contains(why), "{config}: {said}");
    }
    let said = Home::new("").complaint(&["serve"], &[("RUVLLM_PORT", "many")]);
    assert!(said.contains("RUVLLM_PORT") && said.contains("'port' cannot be 'many'"), "{said}");
}

#[test]
fn a_file_that_was_named_must_be_there_and_others_need_not() {
    let home = Home::new("");
    let said = home.complaint(&["list", "--config", "/nowhere/config.toml"], &[]);
    assert!(said.contains("/nowhere/config.toml"), "{said}");
    fs::remove_file(home.file()).unwrap();
    assert!(home.run(&["list"], &[]).status.success());
    let path = home.run(&["config", "path"], &[]);
    assert_eq!(String::from_utf8(path.stdout).unwrap().trim(), home.file().to_str().unwrap());
}

#[test]
fn a_setting_lifts_no_need_but_its_own() {
    let home = Home::new("");
    let alone = ["run", "none.gguf", "hi", "--kv-disk-size", "1G"];
    let output = home.run(&alone, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let with_folder = home.run(&alone, &[("RUVLLM_KV_DISK", "/tmp/none")]);
    assert_eq!(with_folder.status.code(), Some(1), "the model is missing, nothing else: {with_folder:?}");
}

#[test]
fn an_error_that_a_setting_caused_tells_where_it_is() {
    let home = Home::new("[run]\ntop_p = 7.5\n");
    let output = home.run(&["run", "none.gguf", "hi"], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("top_p") && said.contains(&format!("{}, line 2", home.file().display())), "{said}");
}

#[test]
fn wrong_settings_keep_nobody_from_help() {
    let home = Home::new("[[[");
    for arguments in [&["--help"][..], &["serve", "--help"], &["config", "path"], &["completions", "bash"], &["man"]] {
        let output = home.run(arguments, &[]);
        assert!(output.status.success() && !output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn shells_and_man_get_all_commands() {
    let home = Home::new("");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = String::from_utf8(home.run(&["completions", shell], &[]).stdout).unwrap();
        assert!(script.contains("drain-timeout") && script.contains("completions"), "{shell}");
    }
    let folder = home.path().join("man1");
    assert!(home.run(&["man", "--folder", folder.to_str().unwrap()], &[]).status.success());
    for page in ["ruvllm.1", "ruvllm-serve.1", "ruvllm-keys-add.1"] {
        assert!(fs::read_to_string(folder.join(page)).unwrap().contains(".TH ruvllm"), "{page}");
    }
}

#[test]
fn passwords_are_not_shown() {
    let home = Home::new("[serve]\nmemory_postgres = \"postgres://ann:hunter2@host/db\"\n");
    for arguments in
        [&["config", "show", "serve"][..], &["config", "show", "serve", "--json"], &["config", "show", "--origin"]]
    {
        let output = home.run(arguments, &[("RUVLLM_RUN_MEMORY_POSTGRES", "host=db user=ann password=hunter2")]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("postgres://ann:***@host/db") && !said.contains("hunter2"), "{said}");
    }
}

#[cfg(unix)]
#[test]
fn what_others_can_write_decides_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new("[serve]\nmemory_key_command = \"touch pwned; false\"\n");
    let open_to_all = |file: &Path| fs::set_permissions(file, fs::Permissions::from_mode(0o666)).expect("it is ours");
    open_to_all(&home.file());
    let said = home.complaint(&["serve", "--port", "0"], &[]);
    assert!(said.contains("config.toml is not used") && said.contains("chmod go-w"), "{said}");
    // Naming it does not help, as long as everybody can write to it.
    let said = home.complaint(&["--config", home.file().to_str().expect("UTF-8"), "serve", "--port", "0"], &[]);
    assert!(said.contains("chmod go-w"), "{said}");
    fs::remove_file(home.file()).expect("it is ours");
    let keys = home.path().join("keys.toml");
    fs::write(&keys, "").expect("a file");
    open_to_all(&keys);
    let refusal = |arguments: &[&str]| {
        let output = home.run(arguments, &[]);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    for arguments in [&["keys", "list"][..], &["serve", "--port", "0"]] {
        assert!(refusal(arguments).contains("keys.toml is not used"), "{arguments:?}");
    }
    fs::remove_file(&keys).expect("it is ours");
    fs::create_dir(home.path().join("memory")).expect("a folder");
    let key = home.path().join("memory/memory.key");
    fs::write(&key, "00".repeat(32)).expect("a file");
    open_to_all(&key);
    let said = refusal(&["serve", "--port", "0"]);
    assert!(said.contains("memory.key is not used"), "{said}");
}
