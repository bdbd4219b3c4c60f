//! Puts the crates together: one request from validated input to streamed text. The Rust API.
//!
//! ```no_run
//! use ruvllm_runtime::{Engine, Message, Prompt, Request};
//!
//! let engine = Engine::builder("model.gguf").build()?;
//! let request = Request::new(Prompt::Messages(vec![Message::user("Why is the sky blue?")]));
//! let mut stream = engine.stream(request)?;
//! for piece in &mut stream {
//!     print!("{}", piece?.text());
//! }
//! println!("\n{:.1} tokens/s", stream.response().timings.decode_tok_s);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Engine`] is a loaded model, made by [`EngineBuilder`]. `generate.rs` has the way of a request, and each step of it is a
//! module: `prepare` (session, policies), `constrain` (grammar, stop strings), `encode` (template, tokens, truncation),
//! `submit` (the engine's thread), `stream` (tokens to text) and `record` (witness log, session).

mod adapters;
mod backend;
mod builder;
mod engine;
mod kv_calibration;
mod prefill_calibration;

// The way of a request, in its order; `generate` calls the steps.
mod request;

mod generate;

mod prepare;

mod constrain;

mod encode;

mod submit;

mod stream;

mod record;

// Used by several steps, or beside them.
mod cancellation;
mod embed;
mod error;
pub mod hardware;
mod item_losses;
mod kernel_packs;
mod learned_files;
mod perplexity;
mod recall;
mod rerank;
mod router;
mod sampling_defaults;
mod training_items;

pub use adapters::{AdapterStats, Adapters, RegisteredAdapter};
pub use backend::{
    Backend, BackendChoice, BackendError, BackendModel, LoadSizes, NATIVE, NoBackendError, OtherBackends,
};
pub use builder::{
    BuildError, BuildProgress, EngineBuilder, ExpertPlace, Fit, KvChoice, ModelMemory, Prefill, Quantization,
    can_draft_for, largest_file, memory_of_file, open_tokenizer, provide_tokenizer_files,
};
pub use cancellation::CancellationToken;
pub use embed::{
    EmbedError, EmbedInput, EmbedRequest, Embedder, Embeddings, NamedEmbedder, RecallError, TextEmbeddings, TooLong,
    hidden_model, hidden_state_of, vector_of,
};
pub use encode::Truncation;
pub use engine::Engine;
pub use error::{GenerateError, RequestError};
pub use kernel_packs::{
    KernelCandidate, KernelChoice, KernelExperience, KernelPackError, KernelPackStatus, KernelPacks, NATIVE_KERNEL,
    OperationChoice, Timing as KernelTiming, kernel_experience,
};
pub use kv_calibration::ColdFormat;
pub use learned_files::{LearnedFileError, LearnedFiles, digest_of as adapter_digest_of, id_of as adapter_id_of};
pub use perplexity::{Perplexity, PerplexityError};
pub use prefill_calibration::FastPrefill;
pub use prepare::check_policy;
pub use recall::RecallStats;
pub use record::{RequestIdentity, RequestRecorder};
pub use request::{
    Divergence, Message, Prompt, RecallUse, Request, Response, Timings, ToolCall, Tools, UnsetParams, Usage,
};
pub use rerank::{RerankError, RerankRequest, RerankScores, Reranker, relevance};
pub use router::{ModelRouter, RoutedModel, RoutedOutcome, RouterOptions, features_of, routed_outcomes};
pub use ruvllm_engine::{
    AdapterId, CacheStats, DiskStats, DiskStore, EvaluateError, FinishReason, HeldAdapter, LookupStats, PAGE_TOKENS,
    PageHash, PageKey, PrefixEvent, PrefixUse, Quota, Recall, Sampled, Sampling, SamplingError, Speculation, StepError,
    SubmitError, Tenant, Tiers, TiersError, TokenLogprob,
};
pub use ruvllm_kernels::{Cores, bound_allocator, trim_allocator};
pub use ruvllm_model::adapters::{AdapterError, AdapterFile, AdapterFormat, merge};
pub use ruvllm_packs::{KernelStatus, LoadedPack};
pub use ruvllm_text::{
    GrammarError, NotEnforced, OutputFormat, StopMatcher, Strictness, Tokenizer, Tool, ToolChoice, closed,
};
pub use sampling_defaults::SamplingDefaults;
pub use stream::{Piece, Stream};
pub use submit::{EngineStatus, PrefixListener, StepMetrics};
pub use training_items::{ItemEncoder, ItemError};
