//! The memory in a real PostgreSQL with pgvector, which the tests fetch and start by themselves.

#![cfg(unix)]

use crate::suite;
use crate::support;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};

use crate::support::{entry, trace, turn};
use ruvllm_memory::{Memory, MemoryError, MemoryOptions, Place, Policy, Recorder, Trace, now_ms};
use serde_json::json;
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
        let watch = format!(
            "exec 2>/dev/null; while kill -0 {}; do sleep 1; done; P=$(head -n 1 '{}/postmaster.pid'); \
             kill -CONT $P $(cat /proc/$P/task/$P/children); kill -INT $P; sleep 2; rm -rf '{}'",
            std::process::id(),
            data.display(),
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

/// The main process of a server and all that it started.
impl Server {
    fn signal(&self, name: &str) {
        let pid = fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap();
        let main = pid.lines().next().unwrap();
        let children = fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap();
        run(Command::new("kill").arg(format!("-{name}")).arg(main).args(children.split_whitespace()));
    }

    fn restart(&self) {
        let data = self.folder.join("data");
        run(self.command("pg_ctl").arg("-D").arg(data).args(["-w", "-m", "immediate", "-l", "log", "restart"]));
    }

    fn open(&self, database: &str, limit: impl FnOnce(&mut ruvllm_memory::Retention)) -> Memory {
        let place = Place::Postgres { url: self.url(database) };
        let mut options = MemoryOptions { place, ..MemoryOptions::in_folder("") };
        limit(&mut options.retention);
        Memory::open(options).unwrap()
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
                    let traces: Vec<_> =
                        (0..4).map(|i| trace(entry(&format!("m{at}-{batch}-{i}"), i, now_ms()))).collect();
                    machine.record(&traces).unwrap();
                }
            });
        }
    });
    for machine in &machines {
        assert_eq!(machine.status().unwrap().entries, 60);
        let verified = machine.witness().verify(&mut |_| {}).unwrap();
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

#[test]
fn the_sessions_of_a_tenant_stay_within_their_quota() {
    SERVER.create("quota");
    let memory = SERVER.open("quota", |limits| limits.session_bytes_max = 100_000);
    suite::the_sessions_of_a_tenant_stay_within_their_quota(&memory);
}

#[test]
fn sessions_make_room_as_entries_do() {
    SERVER.create("room");
    suite::sessions_make_room_as_entries_do(&SERVER.open("room", |limits| limits.bytes_max = 1_000_000));
}

/// All processes of the server are stopped: connections stay open, new ones are taken by the system, and nobody answers.
#[test]
fn a_stalled_server_costs_no_answers_and_is_picked_up_again() {
    let server = Server::start();
    server.create("stalled");
    let memory = Arc::new(server.open("stalled", |_| {}));
    memory.policies().put(&Policy::new("router", "default", json!({ "temperature": 0.2 })), None).unwrap();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    let witness =
        |name: &str| Trace { turn: Some(turn("", "talk", name, now_ms())), ..trace(entry(name, 1, now_ms())) };
    recorder.record(witness("before"));
    support::until("all is written", || recorder.flush());

    server.signal("STOP");
    let known = memory.policies().known("");
    assert_eq!(known[&("router".into(), "default".into())].parameters["temperature"], 0.2);
    // Whoever names a session is told, and not kept waiting; that would be for minutes otherwise.
    let error = recorder.session("", "talk").unwrap_err();
    assert!(error.is_transient(), "{error}");
    for at in 0..50 {
        recorder.record(witness(&format!("r{at}")));
    }
    assert!(!recorder.flush(), "it says that it could not");
    assert_eq!((recorder.stats().lost, recorder.stats().waiting), (0, 50));

    server.signal("CONT");
    support::until("it is picked up again", || recorder.stats().waiting == 0);
    let stats = recorder.stats();
    assert_eq!((stats.written, stats.lost, stats.overflowed), (51, 0, 0));
    let mut turns = 0;
    support::until("sessions can be read", || {
        recorder.session("", "talk").map(|found| turns = found.unwrap().turns).is_ok()
    });
    assert_eq!((turns, memory.status().unwrap().entries), (51, 51), "each once");
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());

    // Connections that ended with a server are not used again.
    server.restart();
    assert_eq!(memory.status().unwrap().entries, 51);

    // And if it never comes back: the end does not wait for it.
    server.signal("STOP");
    recorder.record(witness("last"));
    drop(recorder);
    server.signal("CONT");
}

#[test]
fn it_says_what_is_not_encrypted() {
    let told = open("encrypted").status().unwrap().encryption;
    assert!(told.starts_with("not by RuvLLM"), "{told}");
}
