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

mod backend;
mod builder;
mod constraint;
mod embeddings;
mod encoding;
mod engine;
mod engine_thread;
mod fingerprint;
pub mod hardware;
mod kv_guard;
mod model_memory;
mod perplexity;
mod prompt;
mod remember;
mod request;
mod stream;
mod truncation;
mod vocabulary;

pub use backend::{Backend, EmbedError, EmbedInput, EmbedRequest, Embeddings, Patience, TooLong};
pub use builder::{BuildError, BuildProgress, EngineBuilder, KvChoice, open_tokenizer};
pub use embeddings::TextEmbeddings;
pub use engine::{Engine, GenerateError};
pub use engine_thread::{EngineStatus, StepMetrics};
pub use kv_guard::ColdFormat;
pub use model_memory::ModelMemory;
pub use perplexity::{Perplexity, PerplexityError};
pub use prompt::{Message, Prompt, ToolCall};
pub use remember::{
    Embedder, RecallError, Remember, RememberError, Remembering, check_policy, hidden_model, hidden_state_of, vector_of,
};
pub use request::{Divergence, LeftOpen, Request, Response, Timings, Tools, Usage};
pub use ruvllm_engine::{
    CacheStats, DiskStats, DiskStore, FinishReason, LookupStats, PageKey, PrefixUse, Quota, Sampled, Sampling,
    SamplingError, Speculation, StepError, SubmitError, Tenant, Tiers, TiersError, TokenLogprob,
};
pub use ruvllm_kernels::{Cores, bound_allocator, trim_allocator};
pub use ruvllm_text::{GrammarError, Shape, StopMatcher, Tokenizer, Tool, ToolChoice, closed};
pub use stream::{Piece, Stream};
pub use truncation::Truncation;
