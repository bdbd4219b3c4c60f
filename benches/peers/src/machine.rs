//! The machine: its processor, its cores, and whether it is busy with something else.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;

use ruvllm_runtime::hardware::Hardware;
use serde::Serialize;

/// Load above which other programs are surely running.
const LOAD_IDLE_MAX: f64 = 0.5;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    /// What the processor can do, as the kernel lists it: vector and tile instructions.
    pub features: Vec<String>,
    pub cores: usize,
    pub threads: usize,
    pub memory_bytes: Option<u64>,
    pub load_average: Option<f64>,
}

impl Machine {
    pub fn detect(threads: Option<usize>) -> Self {
        let hardware = Hardware::detect();
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cores = physical_cores();
        Self {
            cpu: hardware.cpu.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            features: features(&info),
            cores,
            threads: threads.unwrap_or(cores),
            memory_bytes: hardware.memory_bytes,
            load_average: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|load| load.split(' ').next()?.parse().ok()),
        }
    }

    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|own| own == feature)
    }

    /// What a reader of the figures has to know.
    pub fn remarks(&self) -> Vec<String> {
        let busy = self.load_average.filter(|load| *load > LOAD_IDLE_MAX).map(|load| {
            format!("the machine's load was {load:.1} when the run began: other programs spoil the figures")
        });
        let crowded = (self.threads > self.cores)
            .then(|| format!("{} threads share {} physical cores", self.threads, self.cores));
        busy.into_iter().chain(crowded).collect()
    }
}

/// Cores that this process may use, counting those with several hardware threads once.
fn physical_cores() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, NonZero::get);
    let siblings: BTreeSet<String> = (0..)
        .map(|cpu| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")))
        .map_while(Result::ok)
        .collect();
    if siblings.is_empty() { allowed } else { allowed.min(siblings.len()) }
}

fn features(info: &str) -> Vec<String> {
    let lines = info.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let all = lines.and_then(|line| line.split_once(':')).map_or("", |(_, features)| features);
    let matters = |name: &&str| {
        ["avx", "amx", "fma", "f16c", "asimd", "sve", "i8mm", "bf16"].iter().any(|prefix| name.starts_with(prefix))
    };
    all.split_whitespace().filter(matters).map(str::to_owned).collect()
}
