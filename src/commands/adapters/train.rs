//! `ruvllm adapters train`: trains an adapter of a model on this machine.

mod data;
mod report;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_kernels::Cores;
use ruvllm_runtime::hardware::{Hardware, chosen_kernels};
use ruvllm_runtime::{AdapterFile, ItemEncoder};
use ruvllm_store::{ModelName, default_home};
use ruvllm_training::{
    AdapterLabel, Base, Data, Machine, RATES, TrainError, TrainOptions, Trainer, saved_options, split_documents,
    try_learning_rates,
};

use crate::exit::Interrupted;
use crate::loading::{model_file, store};
use crate::output;
use crate::output::progress::{PullProgress, interrupt_flag};
use report::Report;

/// Train a LoRA adapter of a model on this machine
///
/// The model's own weights stay as they are: two thin matrices beside each of its matrices are trained by back-propagation, and
/// kept in the store as an adapter that `run --adapter` and servers use at once. Models with experts or recurrent layers cannot
/// be trained.
///
/// Each line of the data is one JSON object, of one of four kinds:
///
///   {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}   learns the assistant's answers, in
///   the model's chat format
///
///   {"prompt": "…", "completion": "…"}   learns the completion, without a chat format
///
///   {"text": "…"}   learns every token; a long text is cut into windows of --step-tokens
///
///   {"prompt": "…", "chosen": "…", "rejected": "…"}   learns to prefer one answer to the other. With lists of messages instead of
///   texts, in the model's chat format; without a prompt, that is what both begin with. "rejected" may also stand beside "messages"
///   or "completion": the text that the last answer is preferred to
///
/// A share of the lines is held out (--validation). The loss on these, before training and after each epoch, says whether the
/// adapter has learned something that helps with other texts too: the run ends when it no longer falls, and the best factors are
/// kept. The same data, options and seed give the same bytes, on any number of threads.
///
/// Ctrl-C saves the run; the same command with --resume goes on with it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm adapters train smollm2 --data answers.jsonl --name smollm2:legal\n  \
                        ruvllm run smollm2 --adapter legal \"Is this binding?\"\n  \
                        ruvllm adapters train smollm2 --data manual.jsonl --learning-rate auto --epochs 5\n  \
                        ruvllm adapters train smollm2 --data new.jsonl --replay general.jsonl --replay-share 0.25\n  \
                        ruvllm adapters train smollm2 --data pairs.jsonl --preference-weight 2\n  \
                        ruvllm adapters train smollm2 --data answers.jsonl --activated     cached prompts stay the model's")]
pub struct Train {
    /// Name from the catalogue, hf:OWNER/REPO[/FILE.gguf], or path of a GGUF file or of a folder of safetensors
    model: String,
    /// What to learn: a file with one JSON object per line
    #[arg(long, value_name = "FILE.jsonl")]
    data: PathBuf,
    /// Keep the adapter in the store under this name: NAME, or MODEL:NAME for one that servers of the model offer by themselves
    /// [default: the name of the data file]
    #[arg(long, conflicts_with = "output")]
    name: Option<String>,
    /// Write the adapter to this new folder instead of the store
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Rank of the adapter, 1 to 64: how much it can hold
    #[arg(long, value_name = "N", default_value_t = 8)]
    rank: usize,
    /// What the adapter is multiplied by, times its rank [default: twice the rank]
    #[arg(long, value_name = "X")]
    alpha: Option<f32>,
    /// Matrices to train beside, by their GGUF names, such as attn_q,attn_v [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    targets: Option<Vec<String>>,
    /// How often everything is gone through at most
    #[arg(long, value_name = "N", default_value_t = 3)]
    epochs: usize,
    /// The largest learning rate, or auto: one epoch with each of 0.0003, 0.001 and 0.003, and the best of these on the held-out lines
    #[arg(long, value_name = "X|auto", default_value_t = LearningRate::Fixed(1e-3))]
    learning_rate: LearningRate,
    /// Let the adapter apply to answers only, so that cached prompts of the model are used as they are (activated LoRA). Of a
    /// conversation each answer is learned after the turns before it
    #[arg(long)]
    activated: bool,
    /// Share of the lines that are held out to judge the adapter by; 0 for none
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    validation: f32,
    /// Lines of another kind that are mixed in, so that the model does not unlearn them
    #[arg(long, value_name = "FILE.jsonl")]
    replay: Option<PathBuf>,
    /// Share of them in all that is learned
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, requires = "replay")]
    replay_share: f32,
    /// How much a preference counts beside learning the chosen answer; 0 makes nothing of rejected answers
    #[arg(long, value_name = "X", default_value_t = TrainOptions::default().preference_weight)]
    preference_weight: f32,
    /// How soon a chosen answer leads by enough: once its lead over the rejected one has grown by 1 / X nats per token, most of
    /// the pull is gone
    #[arg(long, value_name = "X", default_value_t = TrainOptions::default().beta)]
    beta: f32,
    /// Tokens of a step, and of an item or of both answers of a pair, at most
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    step_tokens: usize,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Number of compute threads [default: one for each core that the process may use]
    #[arg(long, short = 't', value_name = "N")]
    threads: Option<usize>,
    /// Go on with the run that Ctrl-C ended; give the same flags
    #[arg(long)]
    resume: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `--learning-rate`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LearningRate {
    Auto,
    Fixed(f32),
}

impl FromStr for LearningRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Self::Fixed).map_err(|_| format!("{text:?} is no number; give one, or auto")),
        }
    }
}

impl fmt::Display for LearningRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(rate) => rate.fmt(f),
        }
    }
}

/// Where the result goes, and the state of a run that is interrupted.
struct Place {
    /// In the store, unless there is a folder.
    name: String,
    folder: Option<PathBuf>,
    state: PathBuf,
}

impl Train {
    pub fn execute(self) -> Result<()> {
        let place = self.place()?;
        if !(0.0..=0.9).contains(&self.validation) {
            bail!("--validation is {}; it must be 0 to 0.9", self.validation);
        }
        let stop = interrupt_flag();
        let model = model_file(&self.model, Arc::clone(&stop))?;
        let gguf = ruvllm_model::open(&model.path).with_context(|| format!("cannot read {}", model.path.display()))?;
        let base = Base::open(Arc::new(gguf), self.step_tokens);
        let base = Arc::new(base.with_context(|| format!("{} cannot be trained", self.model))?);
        let mut encoder = ItemEncoder::open(&model.path, self.step_tokens, self.activated)?;
        let data = self.read(&mut encoder)?;
        let machine = self.machine(stop)?;
        let options = self.options(&place, &base, &data, &machine)?;
        let mut trainer = Trainer::new(Arc::clone(&base), options, data, &machine)?;
        if self.resume {
            trainer.resume(&place.state)?;
        }
        let began = Instant::now();
        let mut report = Report::new(&trainer);
        let outcome = match trainer.run(&mut |advance| report.progress.tell(advance)) {
            Ok(outcome) => outcome,
            Err(TrainError::Stopped) => return Err(self.interrupted(&trainer, &place)),
            Err(error) => return Err(error.into()),
        };
        report.progress.finish();
        let seconds = began.elapsed().as_secs_f64();
        let invocation = self.activated.then(|| encoder.invocation());
        let adapter = install(&trainer, &place, AdapterLabel { base_model: Some(&model.name), invocation })?;
        // What is finished is not resumed, and a state that stays does no harm.
        let _ = std::fs::remove_file(&place.state);
        match self.json {
            true => output::json(&report.to_json(&adapter, &trainer, &outcome, seconds)),
            false => report.table(&adapter, &self.model, &outcome),
        }
    }

    fn place(&self) -> Result<Place> {
        if let Some(folder) = &self.output {
            if folder.exists() {
                bail!("{} exists; name a folder that does not", folder.display());
            }
            let name = folder.display().to_string();
            return Ok(Place { name, folder: Some(folder.clone()), state: folder.with_added_extension("state") });
        }
        let stem = self.data.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = self.name.clone().or(stem).unwrap_or_default();
        let name = ModelName::parse(&name).context("give the adapter a name with --name")?.to_string();
        let state = default_home()?
            .join("training")
            .join(name.replace(':', "%3a").replace('/', "%2f"))
            .with_added_extension("state");
        Ok(Place { name, folder: None, state })
    }

    fn read(&self, encoder: &mut ItemEncoder) -> Result<Data> {
        let items = data::read(&self.data, encoder)?;
        let split = split_documents(items, self.validation, self.seed);
        if split.validation.is_empty() && self.validation > 0.0 {
            output::remark("there is one line, which is learned from: nothing is left to judge the adapter by");
        }
        let replay = self.replay.as_deref().map(|path| data::read(path, encoder)).transpose()?;
        let ignored = encoder.ignored_fields();
        if !ignored.is_empty() {
            output::remark(&format!("fields of the lines that nothing is learned from: {}", ignored.join(", ")));
        }
        Ok(Data { training: split.training, replay: replay.unwrap_or_default(), validation: split.validation })
    }

    fn machine(&self, stop: Arc<AtomicBool>) -> Result<Machine> {
        let hardware = Hardware::detect();
        let threads = self.threads.unwrap_or(hardware.cores);
        if threads == 0 {
            bail!("--threads is 0; at least 1 is needed");
        }
        let memory_budget = hardware.memory_available_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        Ok(Machine {
            cores: Arc::new(Cores::new(hardware.cores)),
            threads,
            kernels: chosen_kernels()?,
            stop,
            memory_budget: memory_budget.unwrap_or(usize::MAX),
        })
    }

    /// Returns the options of the run, with a learning rate that is chosen now if it is to be.
    fn options(&self, place: &Place, base: &Arc<Base>, data: &Data, machine: &Machine) -> Result<TrainOptions> {
        let mut options = TrainOptions {
            rank: self.rank,
            alpha: self.alpha.unwrap_or(2.0 * self.rank as f32),
            targets: self.targets.clone(),
            epochs: self.epochs,
            step_tokens: self.step_tokens,
            seed: self.seed,
            replay_share: self.replay_share,
            preference_weight: self.preference_weight,
            beta: self.beta,
            ..TrainOptions::default()
        };
        match self.learning_rate {
            LearningRate::Fixed(rate) => options.learning_rate = rate,
            LearningRate::Auto if self.resume => options.learning_rate = saved_options(&place.state)?.learning_rate,
            LearningRate::Auto => {
                let tried = try_learning_rates(base, &options, data, machine, &RATES, &mut |_, _| {});
                let tried = match tried {
                    // Nothing has been trained that could be saved.
                    Err(TrainError::Stopped) => return Err(Interrupted.into()),
                    tried => tried?,
                };
                for one in &tried {
                    let (rate, loss) = (one.learning_rate, one.validation_loss);
                    output::remark(&format!("learning rate {rate}: validation loss {loss:.4} after one epoch"));
                }
                options.learning_rate = tried[0].learning_rate;
            }
        }
        Ok(options)
    }

    /// Saves a run that Ctrl-C has ended.
    fn interrupted(&self, trainer: &Trainer, place: &Place) -> anyhow::Error {
        let folder = place.state.parent().unwrap_or(Path::new("."));
        let saved = std::fs::create_dir_all(folder).map_err(anyhow::Error::from);
        match saved.and_then(|()| Ok(trainer.save(&place.state)?)) {
            Ok(()) => {
                output::remark("the run is saved: the same command with --resume goes on with it");
                Interrupted.into()
            }
            Err(error) => error.context("the run could not be saved"),
        }
    }
}

/// Writes the adapter, and brings it into the store if it is to have a name there. Returns what it is called.
fn install(trainer: &Trainer, place: &Place, label: AdapterLabel<'_>) -> Result<Installed> {
    if let Some(folder) = &place.folder {
        let bytes = trainer.write(folder, label)?;
        // A path that is no name either, whatever was given.
        let name = folder.canonicalize().map_or(place.name.clone(), |whole| whole.display().to_string());
        return Ok(Installed { name, bytes });
    }
    // Beside the store's own, which do not begin with a dot.
    let folder = default_home()?.join("adapters").join(format!(".trained-{}", std::process::id()));
    let bytes = trainer.write(&folder, label)?;
    let check = |path: &Path| AdapterFile::open(path).map(drop).map_err(|error| error.to_string());
    let mut progress = PullProgress::new(Arc::default());
    let stored = store()?.pull_adapter(&folder.to_string_lossy(), Some(&place.name), &check, &mut progress);
    // What cannot be removed does no harm.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(Installed { name: stored?.name, bytes })
}

/// An adapter that is ready to be used.
struct Installed {
    /// In the store, or its folder.
    name: String,
    bytes: u64,
}
