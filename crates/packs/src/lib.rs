//! Kernel packs: small WebAssembly modules of third parties that compute operations of a forward pass.
//!
//! A pack is a folder or an archive: a signed manifest, and modules whose hashes are in it ([`Pack`]). What has been checked is
//! compiled by the [`Sandbox`], which bounds time and memory of everything that runs. Knows neither models nor HTTP.

#[cfg(target_endian = "big")]
compile_error!("tensors are handed to kernels as they are in memory, which must be little-endian");

mod abi;
mod gates;
pub mod manifest;
mod pack;
mod sandbox;
mod signature;

pub use abi::{ABI_VERSION, KernelCode};
pub use gates::GateError;
pub use manifest::{Category, Kernel, Manifest, ManifestError};
pub use pack::{MANIFEST, Pack, PackError, SIGNATURE, Trust, fill_hashes, hash_of, write_archive};
pub use sandbox::{
    Call, Fault, Instance, InstanceLimits, MODULE_BYTES_MAX, Module, ModuleError, Number, Sandbox, SandboxError,
};
pub use signature::{KeyFileError, PublicKey, SecretKey, SignatureError, verify};
