//! Compiles and runs modules that nobody trusts.
//!
//! No machine code ever comes from outside: modules are compiled when they are loaded, which takes milliseconds.

mod budget;
mod fault;
mod inspect;
mod instance;
mod module;
mod ticker;

use std::sync::Arc;
use std::{io, thread};

use wasmtime::{Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig};

pub use fault::Fault;
pub use inspect::{MODULE_BYTES_MAX, ModuleError};
pub use instance::{Call, Instance, Number};
pub use module::Module;

use ticker::Ticker;

/// Bytes of a page of WebAssembly.
pub(crate) const PAGE_BYTES: usize = 1 << 16;
/// Limits to what a manifest may ask for.
pub(crate) const PAGES_MAX: u32 = 256;
pub(crate) const TABLE_ELEMENTS_MAX: u32 = 1024;
/// Stack of a kernel, which is on the thread that calls it.
const STACK_BYTES: usize = 256 << 10;
/// Memories for which address space is reserved, 4 GiB each, so that no access needs a check.
const MEMORIES_MIN: usize = 64;
/// Memories for each core: those of several models, each with a pack and one that replaces it.
const MEMORIES_EACH: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("cannot set up the sandbox for kernels: {0}")]
    Engine(String),
    #[error("cannot start the thread that keeps the time of kernels: {0}")]
    Ticker(#[source] io::Error),
}

/// What an instance may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceLimits {
    /// Pages of 64 KiB.
    pub memory_pages: u32,
    pub table_elements: u32,
    /// Milliseconds of one call.
    pub budget_ms: u32,
}

impl Default for InstanceLimits {
    fn default() -> Self {
        Self { memory_pages: 16, table_elements: 64, budget_ms: 5 }
    }
}

/// The runtime of kernels, with the clock that stops them. Clones are the same one.
#[derive(Clone)]
pub struct Sandbox {
    engine: Engine,
    ticker: Arc<Ticker>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sandbox")
    }
}

impl Sandbox {
    pub fn new() -> Result<Self, SandboxError> {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let memories = MEMORIES_MIN.max(cores * MEMORIES_EACH) as u32;
        let mut pool = PoolingAllocationConfig::new();
        pool.total_memories(memories)
            .total_core_instances(memories)
            .total_tables(memories)
            .max_memories_per_module(1)
            .max_tables_per_module(1)
            .table_elements(TABLE_ELEMENTS_MAX as usize)
            .max_memory_size(PAGES_MAX as usize * PAGE_BYTES);
        let mut config = Config::new();
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
            .cranelift_opt_level(OptLevel::Speed)
            .epoch_interruption(true)
            .max_wasm_stack(STACK_BYTES)
            .wasm_simd(true)
            .wasm_bulk_memory(true)
            .wasm_multi_value(true)
            .wasm_relaxed_simd(false)
            .wasm_tail_call(false)
            .wasm_multi_memory(false)
            .wasm_memory64(false)
            .wasm_extended_const(false)
            .wasm_backtrace_max_frames(None);
        let engine = Engine::new(&config).map_err(|error| SandboxError::Engine(format!("{error:#}")))?;
        let ticker = Ticker::start(&engine).map_err(SandboxError::Ticker)?;
        Ok(Self { engine, ticker: Arc::new(ticker) })
    }
}
