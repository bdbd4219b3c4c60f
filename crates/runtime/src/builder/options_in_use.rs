//! Options that only the native backend has a use for.

use ruvllm_engine::Tiers;
use ruvllm_runner::PageFormat;

use super::model_file::{ModelFile, Plan};
use super::{BuildError, EngineBuilder, ExpertPlace, KvChoice, Prefill};

/// What other backends keep no pages in: pages count 16 tokens in this format.
const PLAIN: KvChoice = KvChoice::Tiers(Tiers::uniform(PageFormat::F16));

impl EngineBuilder {
    /// Opens the model's file and leaves out the options that its backend has no use for.
    pub(super) fn open(self) -> Result<(Self, ModelFile), BuildError> {
        let file = ModelFile::open(&self.path, self.quantize, self.backend, &self.others)?;
        let builder = match file.plan {
            Plan::Native(_) => self,
            Plan::Other(..) => Self {
                kv: PLAIN,
                disk: None,
                keeps_hidden_states: false,
                experts: ExpertPlace::Memory,
                draft_model: None,
                quantize: None,
                threads: None,
                prefill: Prefill::Exact,
                kernel_packs: Vec::new(),
                ..self
            },
        };
        Ok((builder, file))
    }

    /// Names the options that were asked for and have no effect on another backend. A server may have models that they have
    /// an effect on.
    pub(super) fn unused(&self) -> Vec<&'static str> {
        let is_plain = self.kv == KvChoice::Auto || self.kv == PLAIN;
        let all = [
            ("--kv", !is_plain),
            ("--kv-disk", self.disk.is_some()),
            ("--experts disk", matches!(self.experts, ExpertPlace::Disk(_))),
            ("--draft-model", self.draft_model.is_some()),
            ("--quantize", self.quantize.is_some()),
            ("--prefill fast", self.prefill == Prefill::Fast),
            ("--threads", self.threads.is_some()),
            ("--kernel-pack", !self.kernel_packs.is_empty()),
        ];
        all.into_iter().filter_map(|(flag, is_set)| is_set.then_some(flag)).collect()
    }
}
