//! What is in a module, before any of it is compiled.

use wasmparser::{FunctionBody, Operator, Parser, Payload, TypeRef};

use super::{InstanceLimits, TABLE_ELEMENTS_MAX};

/// Kernels are a few kilobytes; what is compiled must be bounded.
pub const MODULE_BYTES_MAX: usize = 1 << 20;
/// What one function may have: the time to compile it grows faster than its size.
const FUNCTION_BYTES_MAX: usize = 64 << 10;
/// Pages that a function may copy or fill from one look at the clock to the next, a few milliseconds: that is looked at when a
/// function begins and at the end of each turn of a loop, and not while memory is copied.
const BULK_PAGES_MAX: u32 = 1024;
const FUNCTIONS_MAX: u32 = 1024;
const EXPORTS_MAX: u32 = 256;

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ModuleError {
    #[error("has {got} bytes, more than the {max} that a module may have")]
    TooLarge { got: usize, max: usize },
    #[error("is no module that this runtime can run: {0}")]
    Invalid(String),
    #[error("is a component; kernels are core modules")]
    Component,
    #[error("has a start function, which would run before anybody asks for it")]
    StartFunction,
    #[error("imports {module}.{name}; kernels get nothing from outside")]
    Import { module: String, name: String },
    #[error("has {got} {what}, more than the {max} that are allowed")]
    TooMany { what: &'static str, got: u64, max: u64 },
    #[error("shares its memory between threads, which this runtime does not support")]
    SharedMemory,
    #[error("exports no {0}")]
    NoExport(String),
    #[error("exports {name} as something else than {wanted}")]
    ExportType { name: String, wanted: &'static str },
    #[error("speaks version {got} of the interface; this runtime speaks {}", crate::ABI_VERSION)]
    Abi { got: u32 },
    #[error("wants tensors aligned to {0}; it can be a power of two up to 64")]
    Alignment(u32),
    #[error("fails when it is started: {0}")]
    Start(#[source] super::Fault),
}

/// Refuses what kernels do not need, and what would take long to compile.
pub(super) fn inspect(bytes: &[u8], limits: InstanceLimits) -> Result<(), ModuleError> {
    if bytes.len() > MODULE_BYTES_MAX {
        return Err(ModuleError::TooLarge { got: bytes.len(), max: MODULE_BYTES_MAX });
    }
    if Parser::is_component(bytes) {
        return Err(ModuleError::Component);
    }
    let invalid = |error: wasmparser::BinaryReaderError| ModuleError::Invalid(error.to_string());
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(invalid)? {
            Payload::StartSection { .. } => return Err(ModuleError::StartFunction),
            Payload::ImportSection(imports) => {
                if let Some(import) = imports.into_imports().next() {
                    let import = import.map_err(invalid)?;
                    if let TypeRef::Memory(memory) = import.ty
                        && memory.shared
                    {
                        return Err(ModuleError::SharedMemory);
                    }
                    return Err(ModuleError::Import { module: import.module.into(), name: import.name.into() });
                }
            }
            Payload::MemorySection(memories) => {
                for memory in memories {
                    let memory = memory.map_err(invalid)?;
                    if memory.shared {
                        return Err(ModuleError::SharedMemory);
                    }
                    within("pages of memory", memory.initial, limits.memory_pages.into())?;
                }
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    let initial = table.map_err(invalid)?.ty.initial;
                    within("table elements", initial, limits.table_elements.min(TABLE_ELEMENTS_MAX).into())?;
                }
            }
            Payload::FunctionSection(functions) => {
                within("functions", functions.count().into(), FUNCTIONS_MAX.into())?;
            }
            Payload::ExportSection(exports) => within("exports", exports.count().into(), EXPORTS_MAX.into())?,
            Payload::CodeSectionEntry(body) => {
                within("bytes in a function", body.range().len() as u64, FUNCTION_BYTES_MAX as u64)?;
                let max = (BULK_PAGES_MAX / limits.memory_pages.max(1)).max(1);
                within(
                    "copies and fills of memory in a function, of so many memory_pages,",
                    bulk_operations(&body).map_err(invalid)?,
                    max.into(),
                )?;
            }
            Payload::End(_) => break,
            _ => {}
        }
    }
    Ok(())
}

/// Returns how many operations a function has whose time depends on an operand.
fn bulk_operations(body: &FunctionBody<'_>) -> Result<u64, wasmparser::BinaryReaderError> {
    let mut operators = body.get_operators_reader()?;
    let mut count = 0;
    while !operators.eof() {
        count += u64::from(matches!(
            operators.read()?,
            Operator::MemoryCopy { .. }
                | Operator::MemoryFill { .. }
                | Operator::MemoryInit { .. }
                | Operator::TableCopy { .. }
                | Operator::TableFill { .. }
                | Operator::TableInit { .. }
        ));
    }
    Ok(count)
}

fn within(what: &'static str, got: u64, max: u64) -> Result<(), ModuleError> {
    if got > max { Err(ModuleError::TooMany { what, got, max }) } else { Ok(()) }
}
