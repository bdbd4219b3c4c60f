//! `ruvllm learn import`

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_packs::PublicKey;
use ruvllm_training::TrainOptions;
use serde_json::json;

use super::case::CaseFlags;
use super::now::data::{Lesson, digest};
use super::now::report;
use super::shared;
use crate::learning::{GeneralTexts, Scratch};
use crate::output;

/// Take what others have learned, and serve it if it wins here
///
/// It has to be signed by a key that is trusted and to be of the very same model file. It is judged as what was learned
/// here is: on the feedback that is held out here, without what it was itself learned from.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ruvllm learn import smollm2 ./learned --trust ed25519:…")]
pub struct Import {
    #[command(flatten)]
    case: CaseFlags,
    /// Folder of `ruvllm learn publish`
    folder: PathBuf,
    /// Public key of somebody who is trusted. Can be repeated, and set in config.toml
    #[arg(long, value_name = "KEY", required = true)]
    trust: Vec<PublicKey>,
}

impl Import {
    pub fn execute(self) -> Result<()> {
        let Some((case, examples)) = self.case.open(|_, _, _| Ok(false))? else { return Ok(()) };
        let scratch = Scratch(case.files.scratch()?);
        let cannot = || format!("{} cannot be imported", self.folder.display());
        let (manifest, signer) = shared::read(&self.folder, &self.trust, &scratch.0).with_context(cannot)?;
        let versions = case.memory.learning().versions(&case.scope)?;
        if let Some(known) = versions.iter().find(|version| version.body.adapter == manifest.adapter) {
            bail!("it is version {} here already: see `ruvllm learn history {}`", known.version, case.scope.model);
        }
        let engine = case.engine()?;
        if engine.fingerprint() != manifest.model_digest {
            bail!("it was learned with another file of {}: an adapter fits one file", manifest.model);
        }
        let folder = self.folder.display();
        let told = || {
            format!("it cannot be judged here; `serve {} --adapter NAME={folder}` serves it by name", manifest.model)
        };
        examples.check_enough().with_context(told)?;
        let mut lesson = Lesson::new(examples, &case.model.path, self.case.step_tokens)?;
        let learned: HashSet<&str> = manifest.items.iter().map(String::as_str).collect();
        let known = lesson.items.held_out.len();
        lesson.items.held_out.retain(|item| !learned.contains(&*digest(item)));
        output::remark(&format!(
            "it is judged by {} answers; it was learned from {} others that are held out here",
            lesson.items.held_out.len(),
            known - lesson.items.held_out.len()
        ));
        let texts = (self.case.general.as_deref(), None);
        let general = GeneralTexts::read(texts, &lesson.encoder, &lesson.items)?;
        let judged = case.judge(&engine, (&lesson, &general), (&scratch.0, TrainOptions::default().beta))?;
        let report = json!({
            "gate": judged.report,
            "preferences": judged.measured.preferences,
            "imported": { "signer": signer.to_string(), "created_ms": manifest.created_ms, "gate": manifest.gate },
            "seconds": case.began.elapsed().as_secs_f64(),
        });
        let version = case.store(&scratch.0, &lesson, &judged, report)?;
        match self.case.json {
            true => output::json(&report::to_json(&version)),
            false => report::print(&version, &judged),
        }
    }
}
