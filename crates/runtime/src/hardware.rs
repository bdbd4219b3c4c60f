//! What this machine offers: processor features, cores and memory, as limited by control groups.

use std::fs;
use std::num::NonZero;
use std::path::Path;
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
        let groups = ControlGroups::of_this_process();
        let (limit, free) = (groups.memory_limit(), groups.memory_free());
        let within = |bytes: u64, most: Option<u64>| most.map_or(bytes, |most| bytes.min(most));
        Self {
            cpu: cpu_name(),
            features: features(),
            cores: thread::available_parallelism().map_or(1, NonZero::get),
            memory_bytes: meminfo(&info, "MemTotal").map(|bytes| within(bytes, limit)),
            memory_available_bytes: meminfo(&info, "MemAvailable").map(|bytes| within(bytes, free)),
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

/// Bytes of memory that this process holds, without those of mapped files: the system takes them back when it needs to, and a
/// model's grow with every token that is seen for the first time. Known on Linux only.
pub fn resident_bytes() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    usize::try_from(meminfo(&status, "RssAnon:")?).ok()
}

/// Returns how often this process waited for the disk because what it touched was not in memory. Known on Linux only.
pub fn major_page_faults() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Fields are counted from behind the program's name, which may hold spaces: the 12th of all.
    stat.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
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

/// The control groups of this process that count memory, from its own up to the root, of either version.
struct ControlGroups(Vec<Group>);

struct Group {
    limit: u64,
    /// What the system cannot take back by itself: cached files that nobody has used for a while do not count.
    used: u64,
}

impl ControlGroups {
    fn of_this_process() -> Self {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::read(&text, Path::new("/sys/fs/cgroup"))
    }

    /// `text` names the groups, which are folders in `root`.
    fn read(text: &str, root: &Path) -> Self {
        let mut groups = Vec::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (root, files) = match controllers {
                "" => (root.to_owned(), ["memory.max", "memory.current", "inactive_file "]),
                _ if controllers.split(',').any(|controller| controller == "memory") => {
                    (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "])
                }
                _ => continue,
            };
            let mut folder = root.join(path.trim_start_matches('/'));
            while folder.starts_with(&root) {
                groups.extend(Group::read(&folder, files));
                folder.pop();
            }
        }
        Self(groups)
    }

    /// The tightest.
    fn memory_limit(&self) -> Option<u64> {
        self.0.iter().map(|group| group.limit).min()
    }

    fn memory_free(&self) -> Option<u64> {
        self.0.iter().map(|group| group.limit.saturating_sub(group.used)).min()
    }
}

impl Group {
    fn read(folder: &Path, [limit, usage, inactive]: [&str; 3]) -> Option<Self> {
        let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        let limit = number(limit)?;
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let inactive = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse().ok()).unwrap_or(0);
        Some(Self { limit, used: number(usage).unwrap_or(0).saturating_sub(inactive) })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn group(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn what_a_control_group_uses_already_is_not_free() {
        let root = tempfile::tempdir().unwrap();
        let stat = "anon 100\ninactive_file 300\nactive_file 7\n";
        group(&root.path().join("a"), &[("memory.max", "1000\n"), ("memory.current", "700\n"), ("memory.stat", stat)]);
        group(&root.path().join("a/b"), &[("memory.max", "max\n"), ("memory.current", "650\n")]);
        let groups = ControlGroups::read("0::/a/b\n", root.path());
        assert_eq!((groups.memory_limit(), groups.memory_free()), (Some(1000), Some(600)));
    }

    #[test]
    fn groups_of_the_first_version_count_too() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "2000\n"),
            ("memory.usage_in_bytes", "900\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 400\n"),
        ];
        group(&root.path().join("memory/box"), &files);
        let groups = ControlGroups::read("5:devices:/box\n4:cpu,memory:/box\n0::/\n", root.path());
        assert_eq!((groups.memory_limit(), groups.memory_free()), (Some(2000), Some(1500)));
        assert_eq!(ControlGroups::read("", root.path()).memory_limit(), None);
    }
}
