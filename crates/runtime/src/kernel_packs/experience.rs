//! What kernels took on this machine, kept in the policy memory.
//!
//! A record is a policy of the type `kernel` for each operation, length and machine. It says how fast kernels are and nothing
//! else: what is chosen by a wrong or an old one is still compared with the reference before it is used.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ruvllm_kernels::KernelSet;
use ruvllm_memory::{Memory, MemoryError, Policy, PolicyQuery, PolicySource, now_ms};
use ruvllm_packs::{Category, Operation};
use serde::{Deserialize, Serialize};

use super::choice::{KernelCandidate, NATIVE_KERNEL, Ns, fastest};
use crate::hardware::Hardware;

const KIND: &str = "kernel";
/// Measurements that count: each new one moves the time by at least a part of this many, so that an old one is outvoted soon.
const MEASUREMENTS_MAX: u32 = 8;
/// Kernels of a record; those that were measured longest ago make room.
const KERNELS_MAX: usize = 32;
/// What a call can take.
const NS_MAX: f64 = 1e9;

/// How long a call of a kernel takes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Timing {
    pub ns: f64,
    /// How often it was measured.
    pub measured: u32,
    /// When it was measured last.
    pub at_ms: i64,
}

/// `118 ns`
impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ns(self.ns).fmt(f)
    }
}

impl Timing {
    pub(super) fn new(ns: f64, at_ms: i64) -> Self {
        Self { ns, measured: 1, at_ms }
    }

    pub(super) fn now(time: Duration) -> Self {
        Self::new(time.as_nanos() as f64, now_ms())
    }

    /// Takes a measurement into account.
    fn learn(self, ns: f64, at_ms: i64) -> Self {
        if !self.is_possible() {
            return Self::new(ns, at_ms);
        }
        let measured = self.measured.saturating_add(1);
        let share = 1.0 / f64::from(measured.min(MEASUREMENTS_MAX));
        Self { ns: self.ns + (ns - self.ns) * share, measured, at_ms }
    }

    fn is_possible(&self) -> bool {
        self.ns > 0.0 && self.ns <= NS_MAX && self.measured > 0
    }
}

/// What was measured of an operation on a kind of machine.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    operation: String,
    numbers: usize,
    takes_a_phase: bool,
    machine: String,
    /// By kernel, with what identifies its pack.
    kernels: BTreeMap<String, Timing>,
}

/// A record as users see it.
#[derive(Clone, Debug)]
pub struct KernelExperience {
    pub operation: String,
    pub numbers: usize,
    pub machine: String,
    /// Whether it is about machines like this one.
    pub is_here: bool,
    /// The native kernel, then those of packs.
    pub candidates: Vec<KernelCandidate>,
    /// Index of what would be chosen of all of them.
    pub chosen: usize,
    pub why: String,
}

/// The experience with kernels of one machine.
#[derive(Clone, Debug)]
pub(crate) struct Experience {
    /// `None` keeps nothing.
    memory: Option<Arc<Memory>>,
    machine: Machine,
}

/// A kind of machine: processor, instruction set, version of RuvLLM.
#[derive(Clone, Debug)]
struct Machine {
    /// For people.
    description: String,
    /// For names of policies.
    name: String,
}

impl Machine {
    fn here(kernels: KernelSet) -> Self {
        let cpu = Hardware::detect().cpu.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let (set, version) = (kernels.name(), env!("CARGO_PKG_VERSION"));
        let digest = blake3::hash(cpu.as_bytes()).to_hex();
        Self {
            description: format!("{cpu}, {set}, RuvLLM {version}"),
            name: format!("{set}-{version}-{}", &digest[..8]),
        }
    }
}

impl Experience {
    pub fn new(memory: Option<Arc<Memory>>, kernels: KernelSet) -> Self {
        Self { memory, machine: Machine::here(kernels) }
    }

    /// Adds what was measured now, by kernel, to what is known, and returns that. Where the memory cannot be used, only what was
    /// measured now counts.
    pub fn learn(&self, operation: Operation, category: Category, now: &[(String, f64)]) -> BTreeMap<String, Timing> {
        let at_ms = now_ms();
        let alone = || now.iter().map(|(kernel, ns)| (kernel.clone(), Timing::new(*ns, at_ms))).collect();
        let Some(memory) = &self.memory else { return alone() };
        let learned = self.learn_in(memory, operation, category, now, at_ms);
        learned.unwrap_or_else(|error| {
            tracing::warn!("what kernels took is not kept, and not remembered: {error}");
            alone()
        })
    }

    fn learn_in(
        &self,
        memory: &Memory,
        operation: Operation,
        category: Category,
        now: &[(String, f64)],
        at_ms: i64,
    ) -> Result<BTreeMap<String, Timing>, MemoryError> {
        let name = format!("{category}/{}/{}", operation.numbers(), self.machine.name);
        let stored = memory.policies().in_force("")?;
        let stored = stored.get(&(KIND.to_owned(), name.clone()));
        // One that cannot be read is begun anew.
        let record: Option<Record> = stored.and_then(|policy| serde_json::from_value(policy.parameters.clone()).ok());
        let mut kernels = record.unwrap_or_default().kernels;
        kernels.retain(|_, timing| timing.is_possible());
        for (kernel, ns) in now {
            let learned = kernels.get(kernel).map_or(Timing::new(*ns, at_ms), |known| known.learn(*ns, at_ms));
            kernels.insert(kernel.clone(), learned);
        }
        while kernels.len() > KERNELS_MAX {
            let oldest = kernels.iter().min_by_key(|(_, timing)| timing.at_ms).map(|(kernel, _)| kernel.clone());
            oldest.map(|kernel| kernels.remove(&kernel));
        }
        let record = Record {
            operation: category.to_string(),
            numbers: operation.numbers(),
            takes_a_phase: operation.takes_a_phase(),
            machine: self.machine.description.clone(),
            kernels,
        };
        let parameters = serde_json::to_value(&record)
            .map_err(|error| MemoryError::Invalid { field: "kernel", problem: error.to_string() })?;
        let policy = Policy { source: PolicySource::Instant, ..Policy::new(KIND, &name, parameters) };
        memory.policies().put(&policy, None)?;
        Ok(record.kernels)
    }
}

/// Returns what is known of kernels, of all machines that share the memory.
pub fn kernel_experience(memory: &Memory, kernels: KernelSet) -> Result<Vec<KernelExperience>, MemoryError> {
    let here = Machine::here(kernels);
    let query = PolicyQuery { tenant: Some(String::new()), kind: Some(KIND.to_owned()) };
    let records = memory.policies().list(&query)?.into_iter().filter_map(|policy| {
        let Record { operation, numbers, takes_a_phase, machine, mut kernels } =
            serde_json::from_value(policy.parameters).ok()?;
        kernels.retain(|_, timing| timing.is_possible());
        let candidate = |key: &str, timing| KernelCandidate { kernel: name_of(key).to_owned(), timing, pack: None };
        let native = candidate(NATIVE_KERNEL, kernels.remove(NATIVE_KERNEL));
        let of_packs = kernels.iter().map(|(key, timing)| candidate(key, Some(*timing)));
        let candidates: Vec<_> = [native].into_iter().chain(of_packs).collect();
        let (chosen, why) = fastest(&operation, takes_a_phase, &candidates);
        let is_here = machine == here.description;
        Some(KernelExperience { operation, numbers, machine, is_here, candidates, chosen, why })
    });
    Ok(records.collect())
}

/// Returns what identifies a kernel in records: its name, and the pack's digest.
pub(super) fn key_of(name: &str, digest: &str) -> String {
    format!("{name}#{}", digest.get(..12).unwrap_or(digest))
}

fn name_of(key: &str) -> &str {
    key.split_once('#').map_or(key, |(name, _)| name)
}
