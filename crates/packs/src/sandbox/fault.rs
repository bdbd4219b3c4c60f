//! Why a call failed. None of these is more than that: the operation is computed otherwise.

use wasmtime::Trap;

use crate::abi::KernelCode;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("it ran longer than its budget of {budget_ms} ms")]
    Deadline { budget_ms: u32 },
    #[error("it accessed memory out of bounds: {detail}")]
    MemoryOutOfBounds { detail: String },
    #[error("it accessed a table out of bounds")]
    TableOutOfBounds,
    #[error("an integer overflowed")]
    IntegerOverflow,
    #[error("it divided an integer by zero")]
    DivisionByZero,
    #[error("it converted a number that no integer can hold")]
    BadConversion,
    #[error("it reached code that it declares unreachable")]
    Unreachable,
    #[error("its stack overflowed")]
    StackOverflow,
    #[error("it called through a table what is not there, or of another type")]
    BadIndirectCall,
    #[error("it was stopped: {0}")]
    OtherTrap(String),
    #[error("it returned {0}")]
    Code(KernelCode),
    #[error("number {index} of its output is not finite, or was not written")]
    NotFinite { index: usize },
    #[error("number {index} of its output is {got}, where {expected} is right")]
    Wrong { index: usize, got: f32, expected: f32 },
    #[error("its tensors take {needed} bytes of memory, and it may have {limit}")]
    MemoryLimit { needed: usize, limit: usize },
    #[error("no instance of it could be made: {0}")]
    Instance(String),
}

impl Fault {
    pub(super) fn of(error: &wasmtime::Error, budget_ms: u32) -> Self {
        let Some(trap) = error.downcast_ref::<Trap>() else { return Self::OtherTrap(format!("{error:#}")) };
        match trap {
            Trap::Interrupt => Self::Deadline { budget_ms },
            // Its text has the address and the size of the memory.
            Trap::MemoryOutOfBounds => Self::MemoryOutOfBounds { detail: format!("{error:#}") },
            Trap::TableOutOfBounds => Self::TableOutOfBounds,
            Trap::IntegerOverflow => Self::IntegerOverflow,
            Trap::IntegerDivisionByZero => Self::DivisionByZero,
            Trap::BadConversionToInteger => Self::BadConversion,
            Trap::UnreachableCodeReached => Self::Unreachable,
            Trap::StackOverflow => Self::StackOverflow,
            Trap::IndirectCallToNull | Trap::BadSignature => Self::BadIndirectCall,
            other => Self::OtherTrap(other.to_string()),
        }
    }

    /// A name of one word, for metrics and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Deadline { .. } => "deadline",
            Self::MemoryOutOfBounds { .. } | Self::TableOutOfBounds => "out_of_bounds",
            Self::IntegerOverflow | Self::DivisionByZero | Self::BadConversion => "arithmetic",
            Self::Unreachable => "unreachable",
            Self::StackOverflow => "stack_overflow",
            Self::BadIndirectCall => "bad_call",
            Self::OtherTrap(_) => "trap",
            Self::Code(_) => "code",
            Self::NotFinite { .. } => "not_finite",
            Self::Wrong { .. } => "wrong",
            Self::MemoryLimit { .. } => "memory_limit",
            Self::Instance(_) => "instance",
        }
    }
}
