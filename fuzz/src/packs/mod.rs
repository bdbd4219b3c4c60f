//! Targets of `crates/packs`.

pub mod kernel_pack;
