//! Saves a run between two steps, and goes on with it later as if nothing had happened.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::trainer::Progress;
use crate::{TrainError, TrainOptions, Trainer};

const MAGIC: &[u8; 8] = b"RUVTRN\x01\0";
/// Leads of two million pairs are most of it.
const HEADER_BYTES_MAX: usize = 48 << 20;
const DIGEST: usize = 32;
/// Far more than factors of any model that is trained here take.
const STATE_BYTES_MAX: u64 = 16 << 30;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    base: String,
    data: String,
    options: TrainOptions,
    progress: Progress,
    optimizer_steps: u64,
    /// Numbers of each list.
    numbers: usize,
    has_best: bool,
}

impl Trainer {
    /// Writes the state of the run, complete or not at all.
    pub fn save(&self, path: &Path) -> Result<(), TrainError> {
        let (base, data) = self.digests();
        let header = Header {
            base: base.to_owned(),
            data: data.to_owned(),
            options: self.options().clone(),
            progress: self.progress.clone(),
            optimizer_steps: self.optimizer.steps,
            numbers: self.weights.numbers.len(),
            has_best: self.best.is_some(),
        };
        let header = serde_json::to_vec(&header).expect("plain numbers and texts");
        let mut bytes = MAGIC.to_vec();
        bytes.extend((header.len() as u32).to_le_bytes());
        bytes.extend(header);
        let lists = [&self.weights.numbers, &self.optimizer.mean, &self.optimizer.square];
        for list in lists.into_iter().chain(&self.best) {
            bytes.extend(list.iter().flat_map(|number| number.to_le_bytes()));
        }
        bytes.extend(blake3::hash(&bytes).as_bytes());
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let fault = |source| TrainError::Io { action: "write", path: path.to_owned(), source };
        let mut file = File::create(&partial).map_err(fault)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(fault)?;
        fs::rename(&partial, path).map_err(fault)
    }

    /// Goes on from a saved state of a run with the same model, items and options.
    pub fn resume(&mut self, path: &Path) -> Result<(), TrainError> {
        let refuse = |problem: &str| TrainError::State { path: path.to_owned(), problem: problem.to_owned() };
        // A fourth list, at most, of as many numbers as this run has.
        let list = self.weights.numbers.len() * size_of::<f32>();
        let bytes_max = (MAGIC.len() + 4 + HEADER_BYTES_MAX + 4 * list + DIGEST) as u64;
        let bytes = read(path, bytes_max)?;
        let (header, lists) = parse(&bytes).ok_or_else(|| refuse("it is no state of a training, or damaged"))?;
        let (base, data) = self.digests();
        if header.base != base {
            return Err(refuse("it is of another model"));
        }
        if header.data != data {
            return Err(refuse("it is of other items, or they are split otherwise: give the same data and seed"));
        }
        if header.options != *self.options() {
            return Err(refuse("it is of a run with other options: give the same ones"));
        }
        let count = 3 + usize::from(header.has_best);
        if header.numbers != self.weights.numbers.len() || lists.len() != count * list {
            return Err(refuse("its length is not what it says"));
        }
        let mut lists = lists.chunks_exact(list.max(1)).map(floats);
        let mut next = || lists.next().expect("the length was checked");
        (self.weights.numbers, self.optimizer.mean, self.optimizer.square) = (next(), next(), next());
        self.best = header.has_best.then(next);
        self.optimizer.steps = header.optimizer_steps;
        self.progress = header.progress;
        self.plan_epoch();
        if self.progress.epoch_step >= self.epoch_len() {
            return Err(refuse("it is at a step that there is not"));
        }
        Ok(())
    }
}

/// Returns the options of a saved run.
pub fn saved_options(path: &Path) -> Result<TrainOptions, TrainError> {
    let bytes = read(path, STATE_BYTES_MAX)?;
    let problem =
        || TrainError::State { path: path.to_owned(), problem: "it is no state of a training, or damaged".to_owned() };
    Ok(parse(&bytes).ok_or_else(problem)?.0.options)
}

fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, TrainError> {
    let fault = |source| TrainError::Io { action: "read", path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(fault)?;
    if !metadata.is_file() || metadata.len() > bytes_max {
        let problem = format!("it has {} bytes, and at most {bytes_max} are expected", metadata.len());
        return Err(TrainError::State { path: path.to_owned(), problem });
    }
    fs::read(path).map_err(fault)
}

/// Returns the header and the bytes of the lists, if the digest is right.
fn parse(bytes: &[u8]) -> Option<(Header, &[u8])> {
    let (rest, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST)?)?;
    if *blake3::hash(rest).as_bytes() != *digest {
        return None;
    }
    let rest = rest.strip_prefix(MAGIC)?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (header, lists) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((serde_json::from_slice(header).ok()?, lists))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}
