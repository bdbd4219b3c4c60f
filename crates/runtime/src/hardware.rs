//! What this machine offers: processor features, cores and memory, as limited by control groups.

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::thread;

use ruvllm_kernels::KernelSet;

/// Names a kernel set and so overrides detection.
pub const KERNELS_VARIABLE: &str = "RUVLLM_KERNELS";

/// The machine, as far as it matters for inference.
#[derive(Clone, Debug)]
pub struct Hardware {
    pub cpu: Option<String>,
    /// Processor features that kernels use or will use, as the processor reports them.
    pub features: Vec<&'static str>,
    /// Cores that this process may use: affinity and quota are taken into account.
    pub cores: usize,
    pub memory_bytes: Option<u64>,
    /// What can be taken without swapping, within the control group's limit.
    pub memory_available_bytes: Option<u64>,
    pub kernels: Vec<KernelSet>,
}

impl Hardware {
    pub fn detect() -> Self {
        let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let limit = cgroup_memory_limit();
        let within_limit = |bytes: u64| limit.map_or(bytes, |limit| bytes.min(limit));
        Self {
            cpu: cpu_name(),
            features: features(),
            cores: thread::available_parallelism().map_or(1, NonZero::get),
            memory_bytes: meminfo(&info, "MemTotal").map(within_limit),
            memory_available_bytes: meminfo(&info, "MemAvailable").map(within_limit),
            kernels: KernelSet::available().collect(),
        }
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("RUVLLM_KERNELS is '{got}', which this machine cannot run; possible here: {possible}")]
pub struct KernelsError {
    pub got: String,
    pub possible: String,
}

/// The kernel set that `RUVLLM_KERNELS` names, or the fastest.
pub fn chosen_kernels() -> Result<KernelSet, KernelsError> {
    let Some(name) = std::env::var_os(KERNELS_VARIABLE).filter(|name| !name.is_empty()) else {
        return Ok(KernelSet::best());
    };
    let name = name.to_string_lossy();
    KernelSet::from_name(&name).filter(|set| set.is_available()).ok_or_else(|| {
        let possible: Vec<&str> = KernelSet::available().map(KernelSet::name).collect();
        KernelsError { got: name.into_owned(), possible: possible.join(", ") }
    })
}

fn cpu_name() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn meminfo(info: &str, key: &str) -> Option<u64> {
    let line = info.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The tightest memory limit of our control groups (version 2), from our own up to the root.
fn cgroup_memory_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut folder = PathBuf::from("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    let mut tightest = None;
    while folder.starts_with("/sys/fs/cgroup") {
        let limit = fs::read_to_string(folder.join("memory.max")).ok().and_then(|text| text.trim().parse::<u64>().ok());
        tightest = [tightest, limit].into_iter().flatten().min();
        folder.pop();
    }
    tightest
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => {{
            let mut found = Vec::new();
            $(if std::arch::is_x86_feature_detected!($name) { found.push($name); })*
            found
        }};
    }
    present!("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16")
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => {{
            let mut found = Vec::new();
            $(if std::arch::is_aarch64_feature_detected!($name) { found.push($name); })*
            found
        }};
    }
    present!("neon", "dotprod", "i8mm", "bf16", "fp16")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}
