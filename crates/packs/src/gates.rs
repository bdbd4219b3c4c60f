//! Whether a pack is for this runtime, and if not, exactly why.

use semver::Version;

use crate::manifest::{Kernel, Manifest};

/// What kernels may need and get.
const FEATURES: [&str; 6] =
    ["simd128", "bulk-memory", "multi-value", "sign-extension", "nontrapping-fptoint", "mutable-globals"];
const RUNTIME: &str = "wasmtime";
const ANY: &str = "any";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GateError {
    #[error("it needs RuvLLM {needs} or later, and this is {has}")]
    RuntimeTooOld { needs: Version, has: Version },
    #[error("it is for RuvLLM up to {until}, and this is {has}")]
    RuntimeTooNew { until: Version, has: Version },
    #[error("kernel '{kernel}' needs '{feature}', which this runtime does not offer, and nothing stands in for it")]
    MissingFeature { kernel: String, feature: String },
    #[error("kernel '{kernel}' is for other runtimes than wasmtime, and nothing stands in for it")]
    OtherRuntime { kernel: String },
}

impl Kernel {
    /// Returns what it needs and does not get; where it is for other runtimes only, the name of this one.
    pub(crate) fn missing_features(&self) -> Vec<&str> {
        let here = self.platforms.iter().filter(|platform| [RUNTIME, ANY].contains(&&*platform.runtime));
        let missing = here.map(|platform| {
            let features = platform.features.iter().map(String::as_str);
            features.filter(|feature| !FEATURES.contains(feature)).collect::<Vec<_>>()
        });
        missing.min_by_key(Vec::len).unwrap_or_else(|| vec![RUNTIME])
    }
}

impl Manifest {
    /// Checks it against a version of RuvLLM.
    pub fn check_runtime(&self, has: &Version) -> Result<(), GateError> {
        if let Some(needs) = self.min_runtime_version.as_ref().filter(|needs| has < needs) {
            return Err(GateError::RuntimeTooOld { needs: needs.clone(), has: has.clone() });
        }
        if let Some(until) = self.max_runtime_version.as_ref().filter(|until| has > until) {
            return Err(GateError::RuntimeTooNew { until: until.clone(), has: has.clone() });
        }
        for kernel in &self.kernels {
            let stands_in = self.fallbacks.contains_key(&kernel.id);
            if let (Some(feature), false) = (kernel.missing_features().first(), stands_in) {
                let kernel = kernel.id.clone();
                return Err(match *feature {
                    RUNTIME => GateError::OtherRuntime { kernel },
                    feature => GateError::MissingFeature { kernel, feature: feature.to_owned() },
                });
            }
        }
        Ok(())
    }
}
