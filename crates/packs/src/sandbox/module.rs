//! A compiled module, ready to be instantiated.

use std::time::{Duration, Instant};

use wasmtime::{ExternType, InstancePre, Linker, Store, StoreLimitsBuilder, UpdateDeadline, ValType};

use super::budget::CallBudget;
use super::inspect::inspect;
use super::instance::Instance;
use super::{Fault, InstanceLimits, ModuleError, PAGE_BYTES, Sandbox};

/// Functions that every module has, with the number of their parameters.
const FUNCTIONS: [(&str, usize); 3] = [("kernel_info", 1), ("kernel_init", 2), ("kernel_cleanup", 0)];
/// One that it may have.
const OPTIONAL: (&str, usize) = ("kernel_backward", 1);

#[derive(Clone)]
pub struct Module {
    pub(super) sandbox: Sandbox,
    pub(super) prepared: InstancePre<CallBudget>,
    pub(super) limits: InstanceLimits,
    /// Functions that compute, in the order in which calls name them.
    pub(super) entries: Vec<String>,
    /// What `kernel_init` is given.
    pub(super) params: Vec<u8>,
    compile_time: Duration,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("entries", &self.entries).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Inspects and compiles a module with some functions that compute, and checks that it starts. `params` is given to each
    /// instance.
    pub fn compile(
        &self,
        bytes: &[u8],
        entries: &[&str],
        params: &[u8],
        limits: InstanceLimits,
    ) -> Result<Module, ModuleError> {
        inspect(bytes, limits)?;
        let began = Instant::now();
        let invalid = |error: wasmtime::Error| ModuleError::Invalid(format!("{error:#}"));
        let compiled = wasmtime::Module::from_binary(&self.engine, bytes).map_err(invalid)?;
        let compile_time = began.elapsed();
        check_exports(&compiled, entries)?;
        let prepared = Linker::new(&self.engine).instantiate_pre(&compiled).map_err(invalid)?;
        let module = Module {
            sandbox: self.clone(),
            prepared,
            limits,
            entries: entries.iter().map(|entry| (*entry).to_owned()).collect(),
            params: params.to_vec(),
            compile_time,
        };
        Instance::check(&module)?;
        Ok(module)
    }
}

impl Module {
    pub fn limits(&self) -> InstanceLimits {
        self.limits
    }

    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }

    pub(super) fn store(&self) -> Store<CallBudget> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(self.limits.memory_pages as usize * PAGE_BYTES)
            .table_elements(self.limits.table_elements as usize)
            .instances(1)
            .memories(1)
            .tables(1)
            .build();
        let mut store = Store::new(&self.sandbox.engine, CallBudget::new(limits, self.limits.budget_ms));
        store.limiter(|budget| budget.limits());
        store.epoch_deadline_callback(|mut store| {
            Ok(if store.data_mut().is_spent() { UpdateDeadline::Interrupt } else { UpdateDeadline::Continue(1) })
        });
        store
    }

    pub(super) fn fault(&self, error: &wasmtime::Error) -> Fault {
        Fault::of(error, self.limits.budget_ms)
    }
}

fn check_exports(module: &wasmtime::Module, entries: &[&str]) -> Result<(), ModuleError> {
    let export = |name: &str| module.get_export(name).ok_or_else(|| ModuleError::NoExport(name.to_owned()));
    let wrong = |name: &str, wanted| ModuleError::ExportType { name: name.to_owned(), wanted };
    match export("memory")? {
        ExternType::Memory(memory) if !memory.is_64() && !memory.is_shared() => {}
        _ => return Err(wrong("memory", "a memory of 32-bit addresses")),
    }
    match export("__heap_base")? {
        ExternType::Global(global) if matches!(global.content(), ValType::I32) => {}
        _ => return Err(wrong("__heap_base", "a global i32")),
    }
    let required = FUNCTIONS.into_iter().chain(entries.iter().map(|entry| (*entry, 1)));
    let optional = Some(OPTIONAL).filter(|(name, _)| module.get_export(name).is_some());
    for (name, params) in required.chain(optional) {
        let ExternType::Func(function) = export(name)? else { return Err(wrong(name, "a function")) };
        let is_i32 = |kind: ValType| matches!(kind, ValType::I32);
        let has_type = function.params().len() == params && function.params().all(is_i32);
        if !has_type || function.results().len() != 1 || !function.results().all(is_i32) {
            return Err(wrong(name, "a function from i32 to one i32"));
        }
    }
    Ok(())
}
