//! A process of mistral.rs: it ends when this one does, however that ends.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, io};

use super::log::{LastLines, pass_on};

/// Starts the program and waits for the end of its own input, which is a pipe from this process: the system closes that whatever
/// ends us. Then it ends the program. What the program writes is all that goes to its output.
const GUARD: &str = r#"exec 3<&0; "$@" </dev/null 3<&- 2>&1 & child=$!; exec >/dev/null 2>&1; read -r _ <&3; kill -KILL "$child"; wait "$child""#;
/// Maximum time until the model is loaded and requests are taken.
const START_MAX: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the end of a process may take to be seen after its connections have broken.
const END_SEEN_MAX: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Process {
    guard: Child,
    // `None` only while it ends.
    input: Option<ChildStdin>,
    /// Ends with the program.
    reader: JoinHandle<()>,
    last: LastLines,
    port: u16,
}

impl Process {
    /// Starts the program with these arguments and those for a port on this machine that only it listens to. Returns when it does.
    pub(super) fn start(program: &Path, arguments: &[OsString]) -> Result<Self, String> {
        let port = free_port().map_err(|error| format!("there is no free port: {error}"))?;
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).arg(program).args(arguments);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Its lines are read, and our secrets are none of its business.
        command.env("NO_COLOR", "1").env("RUST_LOG", "info");
        env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RUVLLM_")).for_each(|(name, _)| {
            command.env_remove(name);
        });
        // What a terminal sends to us is not for it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut guard = command.spawn().map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
        let (input, output) = (guard.stdin.take(), guard.stdout.take());
        let (last, (ready, is_ready)) = (LastLines::default(), channel());
        let lines = last.clone();
        let awaited = format!("listening on http://127.0.0.1:{port}");
        let read = move || output.into_iter().for_each(|output| pass_on(output, &lines, &awaited, &ready));
        let reader = thread::Builder::new().name("ruvllm-mistralrs-log".to_owned()).spawn(read);
        let reader = reader.map_err(|error| format!("no thread for its output: {error}"))?;
        let mut process = Self { guard, input, reader, last, port };
        let began = Instant::now();
        loop {
            match is_ready.recv_timeout(LOOK_EVERY) {
                Ok(()) => return Ok(process),
                // The reader has ended, and so has the program.
                Err(RecvTimeoutError::Disconnected) => return Err(process.how_it_ended()),
                Err(RecvTimeoutError::Timeout) if began.elapsed() < START_MAX => {}
                Err(RecvTimeoutError::Timeout) => {
                    let (seconds, line) = (START_MAX.as_secs(), process.last.reason());
                    return Err(format!("it was not ready after {seconds} s; the last it wrote: {line}"));
                }
            }
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.reader.is_finished()
    }

    /// Returns whether it has ended, or does so at this moment.
    pub(super) fn is_ending(&self) -> bool {
        let began = Instant::now();
        while !self.has_ended() && began.elapsed() < END_SEEN_MAX {
            thread::sleep(LOOK_EVERY);
        }
        self.has_ended()
    }

    /// Tells how a process has ended that was not asked to.
    pub(super) fn how_it_ended(&mut self) -> String {
        self.input = None;
        let how = match self.guard.wait().map(|status| status.code()) {
            Ok(Some(code)) if code > 128 => format!("killed by signal {}", code - 128),
            Ok(Some(code)) => format!("exit code {code}"),
            _ => "it is not known how".to_owned(),
        };
        format!("it has ended ({how}); the last it wrote: {}", self.last.reason())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.input = None;
        // It was ended before, or is now.
        let _ = self.guard.wait();
    }
}

/// Returns a port that is free now. If another program is faster, ours says so and ends.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    /// Starts a shell as the program. `$3` is the port.
    fn start(script: &str) -> Result<Process, String> {
        Process::start(Path::new("sh"), &["-c".into(), script.into()])
    }

    fn is_alive(pid: &str) -> bool {
        Command::new("kill").args(["-0", pid.trim()]).stderr(Stdio::null()).status().unwrap().success()
    }

    #[test]
    fn a_process_lives_as_long_as_it_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let say = format!("echo $$ > {}; echo \"listening on http://127.0.0.1:$3\"; exec sleep 600", file.display());
        let process = start(&say).unwrap();
        let pid = fs::read_to_string(file).unwrap();
        assert!(is_alive(&pid) && !process.has_ended());
        drop(process);
        assert!(!is_alive(&pid));
    }

    #[test]
    fn a_process_that_ends_says_why() {
        let said = start("echo 'Error: no such model'; echo more; exit 3").unwrap_err();
        assert!(said.contains("exit code 3") && said.contains("Error: no such model"), "{said}");
        let said = start("kill -KILL $$").unwrap_err();
        assert!(said.contains("killed by signal 9"), "{said}");
        let said = Process::start(Path::new("/nowhere/mistralrs"), &[]).unwrap_err();
        assert!(said.contains("exit code 127") && said.contains("/nowhere/mistralrs"), "{said}");
    }
}
