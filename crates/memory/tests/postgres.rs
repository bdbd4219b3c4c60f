//! The memory in a real PostgreSQL with pgvector, which the tests fetch and start by themselves.

#![cfg(unix)]

mod suite;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use ruvllm_memory::{Memory, MemoryError, MemoryOptions, Place, now_ms};
use support::{entry, trace};
use tempfile::TempDir;

/// One server for all tests of this file; each test has a database of its own.
static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

/// Where nobody else can interfere: a socket in a folder of its own, no port.
struct Server {
    folder: PathBuf,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("ruvllm-pg").tempdir_in("/tmp").unwrap().keep();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let programs = folder.join("pg");
        copy(&fetched(), &programs);
        let data = folder.join("data");
        fs::create_dir(&data).unwrap();
        if is_root() {
            run(Command::new("chown").arg("-R").arg("nobody").arg(&folder));
        }
        let server = Self { folder };
        run(server.command("initdb").arg("-D").arg(&data).args(["-U", "ruvllm", "--auth=trust", "--no-sync"]));
        let options = format!("-k {} -h '' -c fsync=off", server.folder.display());
        let log = server.folder.join("log");
        run(server.command("pg_ctl").arg("-D").arg(&data).args(["-w", "-o", &options, "-l"]).arg(log).arg("start"));
        // The server ends with the tests, whatever becomes of them.
        let pid = fs::read_to_string(data.join("postmaster.pid")).unwrap();
        let watch = format!(
            "exec 2>/dev/null; while kill -0 {}; do sleep 1; done; kill -INT {}; sleep 2; rm -rf '{}'",
            std::process::id(),
            pid.lines().next().unwrap(),
            server.folder.display()
        );
        run(Command::new("setsid").args(["--fork", "sh", "-c", &watch]).stdin(Stdio::null()).stdout(Stdio::null()));
        server
    }

    /// PostgreSQL refuses to run as root.
    fn command(&self, program: &str) -> Command {
        let program = self.folder.join("pg/pgserver/pginstall/bin").join(program);
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(&self.folder).stdout(Stdio::null());
        command
    }

    fn url(&self, database: &str) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://ruvllm@{folder}/{database}")
    }

    fn create(&self, database: &str) {
        let mut command = self.command("createdb");
        run(command.arg("-h").arg(&self.folder).args(["-U", "ruvllm", database]));
    }
}

fn is_root() -> bool {
    let user = Command::new("id").arg("-u").output().unwrap();
    user.stdout.trim_ascii() == b"0"
}

fn run(command: &mut Command) {
    let output = command.stderr(Stdio::piped()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The programs, fetched once into the folder that all tests share.
fn fetched() -> PathBuf {
    let home = std::env::var_os("RUVLLM_HOME").map(PathBuf::from);
    let home = home.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".ruvllm"));
    let folder = home.join("test-data/pgserver-0.1.4");
    if !folder.exists() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fetch.py");
        run(Command::new("python3").arg(script).arg("postgres").arg(&folder));
    }
    folder
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-r").arg(from).arg(to));
}

fn open_at(database: &str) -> Result<Memory, MemoryError> {
    let place = Place::Postgres { url: SERVER.url(database) };
    Memory::open(MemoryOptions { place, ..MemoryOptions::in_folder("") })
}

fn open(test: &str) -> Memory {
    // Names of databases have at most 63 characters.
    let database = &test[..test.len().min(60)];
    SERVER.create(database);
    open_at(database).unwrap()
}

suite!(open);

#[test]
fn several_machines_share_one_memory() {
    SERVER.create("shared");
    let machines: Vec<Memory> = std::thread::scope(|scope| {
        let opened: Vec<_> = (0..3).map(|_| scope.spawn(|| open_at("shared").unwrap())).collect();
        opened.into_iter().map(|opened| opened.join().unwrap()).collect()
    });
    std::thread::scope(|scope| {
        for (at, machine) in machines.iter().enumerate() {
            scope.spawn(move || {
                for batch in 0..5 {
                    let traces = (0..4).map(|i| trace(entry(&format!("m{at}-{batch}-{i}"), i, now_ms()))).collect();
                    machine.remember(traces).unwrap();
                }
            });
        }
    });
    for machine in &machines {
        assert_eq!(machine.status().unwrap().entries, 60);
        let verified = machine.verify_witness(&mut |_| {}).unwrap();
        assert!(verified.is_sound(), "{:?}", verified.problems);
        assert_eq!(verified.batches, 15);
    }
}

#[test]
fn what_only_a_file_can_do_is_refused() {
    let memory = open("refused");
    let folder = TempDir::new().unwrap();
    assert!(matches!(memory.backup(&folder.path().join("b"), &mut |_, _| {}), Err(MemoryError::NotOnServer(_))));
    assert!(matches!(memory.rekey(None), Err(MemoryError::NotOnServer(_))));
}

#[test]
fn an_address_that_leads_nowhere_is_told_without_its_password() {
    for url in ["postgres://me:geheim@127.0.0.1:1/x", "not an address: geheim", "postgres://me:geheim@["] {
        let place = Place::Postgres { url: url.into() };
        let error = Memory::open(MemoryOptions { place, ..MemoryOptions::in_folder("") }).unwrap_err();
        assert!(matches!(error, MemoryError::Connect(_)) && !error.to_string().contains("geheim"), "{error}");
    }
}
