//! Which kernel computes an operation for which several are there, and why.

use std::fmt;

use ruvllm_packs::{Category, Operation};

use super::experience::Timing;

/// What native kernels are called.
pub const NATIVE_KERNEL: &str = "native";
/// How many times as fast a pack's kernel must be for its operation to be taken out of the phase that does it on the way: what
/// is measured is the operation, and a phase of its own costs a wait of all threads and reading the rows again.
const GAIN_FOR_A_PHASE: f64 = 1.4;
/// How many times as fast it must be elsewhere, to be more than chance.
const GAIN: f64 = 1.05;

const NO_PACK: &str = "no pack has a kernel for it";
const NONE_MEASURED: &str = "no kernel of a pack could be measured: it failed";

/// What decides where a pack and the native kernels can compute the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelChoice {
    /// The first pack that has a kernel for it.
    #[default]
    Always,
    /// What takes less time on this machine, as measured now and remembered from before.
    Faster,
}

impl KernelChoice {
    /// Returns what it is called in flags and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Faster => "faster",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Always, Self::Faster].into_iter().find(|choice| choice.name() == name)
    }
}

/// What computes an operation of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationChoice {
    pub category: Category,
    /// What one call gets.
    pub numbers: usize,
    /// Index among the candidates.
    pub chosen: usize,
    /// In a sentence.
    pub why: String,
    /// The native kernel, then those of packs.
    pub candidates: Vec<KernelCandidate>,
}

/// A kernel that can compute an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCandidate {
    /// `native`, or the pack with its version and the kernel.
    pub kernel: String,
    /// `None` if it was not measured.
    pub timing: Option<Timing>,
    /// Index of its pack among those at work.
    pub(super) pack: Option<usize>,
}

impl OperationChoice {
    /// Chooses what is faster.
    pub(super) fn faster(operation: Operation, category: Category, candidates: Vec<KernelCandidate>) -> Self {
        let (chosen, why) = fastest(&category.to_string(), operation.takes_a_phase(), &candidates);
        Self { category, numbers: operation.numbers(), chosen, why, candidates }
    }

    /// Takes the first pack that there is.
    pub(super) fn always(operation: Operation, category: Category, candidates: Vec<KernelCandidate>) -> Self {
        let chosen = usize::from(candidates.len() > 1);
        let times = candidates.get(1).and_then(|pack| pack.timing).zip(candidates[0].timing);
        let why = match times {
            _ if chosen == 0 => NO_PACK.to_owned(),
            Some((pack, native)) => {
                format!("packs are always used here; in running calls it takes {pack}, and the native kernel {native}")
            }
            None => "packs are always used here".to_owned(),
        };
        Self { category, numbers: operation.numbers(), chosen, why, candidates }
    }

    pub fn chosen(&self) -> &KernelCandidate {
        &self.candidates[self.chosen]
    }
}

/// Returns the index of the kernel that is the best choice for an operation, and why.
pub(super) fn fastest(operation: &str, takes_a_phase: bool, candidates: &[KernelCandidate]) -> (usize, String) {
    let ns = |candidate: &KernelCandidate| candidate.timing.map(|timing| timing.ns);
    let packs = candidates.iter().enumerate().skip(1).filter_map(|(i, pack)| Some((i, ns(pack)?)));
    let Some((best, pack_ns)) = packs.min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return (0, if candidates.len() > 1 { NONE_MEASURED } else { NO_PACK }.to_owned());
    };
    let Some(native_ns) = ns(&candidates[0]) else { return (0, "the native kernel was not measured".to_owned()) };
    let times = format!("{} takes {}, and the native kernel {}", candidates[best].kernel, Ns(pack_ns), Ns(native_ns));
    let gain = if takes_a_phase { GAIN_FOR_A_PHASE } else { GAIN };
    if pack_ns * gain <= native_ns {
        (best, times)
    } else if pack_ns >= native_ns {
        (0, times)
    } else if takes_a_phase {
        let costs = format!("{operation} would take a phase of its own, which native kernels do without");
        (0, format!("{times}; but {costs}, and that pays from {gain} times as fast on"))
    } else {
        (0, format!("{times}, which is as good as the same"))
    }
}

/// `118 ns`
pub(super) struct Ns(pub f64);

impl fmt::Display for Ns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 10_000.0 => write!(f, "{ns:.0} ns"),
            ns => write!(f, "{:.1} µs", ns / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NORM: Operation = Operation::RmsNorm { len: 576 };
    const GATES: Operation = Operation::Gated { activation: ruvllm_kernels::ops::Activation::Silu, len: 192 };

    fn chosen(operation: Operation, times: &[Option<f64>]) -> (usize, String) {
        let names = [NATIVE_KERNEL, "a@1.0.0/norm", "b@2.0.0/norm"];
        let candidate = |(name, ns): (&&str, &Option<f64>)| KernelCandidate {
            kernel: (*name).to_owned(),
            timing: ns.map(|ns| Timing::new(ns, 0)),
            pack: None,
        };
        let candidates = names.iter().zip(times).map(candidate).collect();
        let choice = OperationChoice::faster(operation, Category::RmsNorm, candidates);
        (choice.chosen, choice.why)
    }

    #[test]
    fn the_fastest_is_used_and_the_reason_is_said() {
        assert_eq!(
            chosen(NORM, &[Some(118.0), Some(545.0)]),
            (0, "a@1.0.0/norm takes 545 ns, and the native kernel 118 ns".to_owned())
        );
        let (index, why) = chosen(NORM, &[Some(30_000.0), Some(545.0), Some(400.0)]);
        assert_eq!((index, &*why), (2, "b@2.0.0/norm takes 400 ns, and the native kernel 30.0 µs"));
        assert_eq!(chosen(NORM, &[Some(1000.0), Some(500.0), None]).0, 1);
    }

    #[test]
    fn what_takes_a_phase_of_its_own_must_gain_more() {
        let (index, why) = chosen(NORM, &[Some(120.0), Some(100.0)]);
        assert!(index == 0 && why.contains("a phase of its own"), "{why}");
        assert_eq!(chosen(GATES, &[Some(120.0), Some(100.0)]).0, 1);
        let (index, why) = chosen(GATES, &[Some(101.0), Some(100.0)]);
        assert!(index == 0 && why.contains("as good as the same"), "{why}");
    }

    #[test]
    fn what_could_not_be_measured_is_not_used() {
        assert!(chosen(NORM, &[Some(100.0), None]).1.contains("could be measured"));
        assert_eq!(chosen(NORM, &[None, Some(1.0)]).0, 0);
        assert_eq!(chosen(NORM, &[Some(100.0)]), (0, NO_PACK.to_owned()));
    }
}
