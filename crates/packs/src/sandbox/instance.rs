//! One instance of a module, which one thread uses at a time.

use std::fmt;
use std::sync::Arc;

use half::f16;
use wasmtime::{Memory, Store, TypedFunc};

use super::budget::CallBudget;
use super::ticker::CallClock;
use super::{Fault, Module, ModuleError, PAGE_BYTES};
use crate::abi::{ABI_VERSION, DESCRIPTOR_BYTES, Descriptor, INFO_BYTES, Info, KernelCode, Span};

/// What no tensor is aligned to less.
const ALIGNMENT_MIN: u32 = 16;
const ALIGNMENT_MAX: u32 = 64;

/// What is computed from what. Tensors are bytes as they are in memory.
#[derive(Debug)]
pub struct Call<'a> {
    /// Index of the function among those that the module was compiled with.
    pub entry: usize,
    pub params: &'a [u8],
    /// `None` if it is what `out` holds.
    pub a: Option<&'a [u8]>,
    /// Empty if there is one input.
    pub b: &'a [u8],
    pub out: &'a mut [u8],
    /// What the output consists of.
    pub out_type: Number,
}

/// A type of numbers, with what makes one valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    F32,
    F16,
    /// Bytes, any of which is valid.
    Byte,
}

impl Number {
    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Byte => 1,
        }
    }

    fn check_finite(self, bytes: &[u8]) -> Result<(), Fault> {
        const F32_EXPONENT: u32 = 0x7f80_0000;
        const F16_EXPONENT: u16 = 0x7c00;
        let f32_bits = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & F32_EXPONENT;
        let f16_bits = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_bits() & F16_EXPONENT;
        // Without an early end, so that several are looked at together.
        let is_sound = match self {
            Self::F32 => !bytes.chunks_exact(4).fold(false, |any, bytes| any | (f32_bits(bytes) == F32_EXPONENT)),
            Self::F16 => !bytes.chunks_exact(2).fold(false, |any, bytes| any | (f16_bits(bytes) == F16_EXPONENT)),
            Self::Byte => true,
        };
        if is_sound {
            return Ok(());
        }
        let index = match self {
            Self::F32 => bytes.chunks_exact(4).position(|bytes| f32_bits(bytes) == F32_EXPONENT),
            _ => bytes.chunks_exact(2).position(|bytes| f16_bits(bytes) == F16_EXPONENT),
        };
        Err(Fault::NotFinite { index: index.unwrap_or_default() })
    }
}

/// An instance that is made when it is needed: after a failed call, the next one gets a new one.
pub struct Instance {
    module: Module,
    clock: Arc<CallClock>,
    live: Option<Live>,
}

struct Live {
    store: Store<CallBudget>,
    memory: Memory,
    /// From here on the memory is the host's.
    heap: u32,
    info: Info,
    entries: Vec<TypedFunc<u32, i32>>,
    cleanup: TypedFunc<(), i32>,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("module", &self.module).field("is_live", &self.live.is_some()).finish()
    }
}

impl Instance {
    pub fn new(module: &Module) -> Self {
        Self { clock: module.sandbox.ticker.clock(), module: module.clone(), live: None }
    }

    /// Checks that a module starts, and what it says of itself.
    pub(super) fn check(module: &Module) -> Result<(), ModuleError> {
        let mut instance = Self::new(module);
        let mut live = instance.start().map_err(ModuleError::Start)?;
        let info = live.info;
        if info.abi != ABI_VERSION {
            return Err(ModuleError::Abi { got: info.abi });
        }
        if !info.alignment.is_power_of_two() || info.alignment > ALIGNMENT_MAX {
            return Err(ModuleError::Alignment(info.alignment));
        }
        // The room that every call takes.
        live.reserve(module, live.heap as usize + info.scratch_bytes as usize).map_err(ModuleError::Start)?;
        instance.live = Some(live);
        Ok(())
    }

    /// Computes. Whatever goes wrong, `out` is then as it was.
    pub fn forward(&mut self, call: Call<'_>) -> Result<(), Fault> {
        let mut live = match self.live.take() {
            Some(live) => live,
            None => self.start()?,
        };
        let _running = self.module.sandbox.ticker.begin(&self.clock);
        live.run(&self.module, call)?;
        // One that failed is in a state that nobody knows, and is dropped.
        self.live = Some(live);
        Ok(())
    }

    fn start(&self) -> Result<Live, Fault> {
        let module = &self.module;
        let _running = module.sandbox.ticker.begin(&self.clock);
        let mut store = module.store();
        arm(&mut store);
        let made = module.prepared.instantiate(&mut store);
        let made = made.map_err(|error| Fault::Instance(format!("{error:#}")))?;
        let missing = |name: &str| Fault::Instance(format!("there is no {name}"));
        let memory = made.get_memory(&mut store, "memory").ok_or_else(|| missing("memory"))?;
        let heap = made.get_global(&mut store, "__heap_base").ok_or_else(|| missing("__heap_base"))?;
        let heap = heap.get(&mut store).i32().ok_or_else(|| missing("__heap_base"))? as u32;
        let wrong = |error: wasmtime::Error| Fault::Instance(format!("{error:#}"));
        let functions = module.entries.iter().map(|entry| made.get_typed_func::<u32, i32>(&mut store, entry));
        let entries = functions.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let cleanup = made.get_typed_func(&mut store, "kernel_cleanup").map_err(wrong)?;
        let about = made.get_typed_func::<u32, i32>(&mut store, "kernel_info").map_err(wrong)?;
        let init = made.get_typed_func::<(u32, u32), i32>(&mut store, "kernel_init").map_err(wrong)?;
        let info = Info { abi: 0, alignment: 0, scratch_bytes: 0 };
        let mut live = Live { store, memory, heap, info, entries, cleanup };

        let at = align(live.heap as usize, ALIGNMENT_MAX)?;
        live.reserve(module, at + INFO_BYTES.max(module.params.len()))?;
        let code = about.call(&mut live.store, at as u32).map_err(|error| module.fault(&error))?;
        succeeded(code)?;
        let mut info = [0; INFO_BYTES];
        info.copy_from_slice(&live.memory.data(&live.store)[at..][..INFO_BYTES]);
        live.info = Info::from_bytes(&info);
        live.memory.data_mut(&mut live.store)[at..][..module.params.len()].copy_from_slice(&module.params);
        arm(&mut live.store);
        let code = init.call(&mut live.store, (at as u32, module.params.len() as u32));
        succeeded(code.map_err(|error| module.fault(&error))?)?;
        Ok(live)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(mut live) = self.live.take() {
            let _running = self.module.sandbox.ticker.begin(&self.clock);
            arm(&mut live.store);
            // What it answers changes nothing: it is dropped.
            let _ = live.cleanup.call(&mut live.store, ());
        }
    }
}

impl Live {
    fn run(&mut self, module: &Module, call: Call<'_>) -> Result<(), Fault> {
        let place = Place::of(self.heap, self.info, &call)?;
        self.reserve(module, place.end)?;
        // Only as much of the memory as is taken, so that offsets are checked here, too.
        let memory = &mut self.memory.data_mut(&mut self.store)[..place.end];
        let Descriptor { a, b, out, params, .. } = place.descriptor;
        slice(memory, a).copy_from_slice(call.a.unwrap_or(call.out));
        slice(memory, b).copy_from_slice(call.b);
        slice(memory, params).copy_from_slice(call.params);
        // All ones are no number, so what a kernel does not write is noticed.
        slice(memory, out).fill(0xff);
        memory[place.at..][..DESCRIPTOR_BYTES].copy_from_slice(&place.descriptor.to_bytes());
        arm(&mut self.store);
        let code = self.entries[call.entry].call(&mut self.store, place.at as u32);
        succeeded(code.map_err(|error| module.fault(&error))?)?;
        // A memory never becomes smaller. Where the output is, the host knows: the kernel may have changed its descriptor.
        let written = slice(&mut self.memory.data_mut(&mut self.store)[..place.end], out);
        call.out_type.check_finite(written)?;
        call.out.copy_from_slice(written);
        Ok(())
    }

    /// Makes the memory at least so large.
    fn reserve(&mut self, module: &Module, bytes: usize) -> Result<(), Fault> {
        let has = self.memory.data_size(&self.store);
        if bytes <= has {
            return Ok(());
        }
        let limit = module.limits.memory_pages as usize * PAGE_BYTES;
        let pages = (bytes - has).div_ceil(PAGE_BYTES) as u64;
        let grown = if bytes <= limit { self.memory.grow(&mut self.store, pages).is_ok() } else { false };
        if grown { Ok(()) } else { Err(Fault::MemoryLimit { needed: bytes, limit }) }
    }
}

/// Where in the memory of a kernel the tensors of a call are.
struct Place {
    /// Of the descriptor.
    at: usize,
    descriptor: Descriptor,
    end: usize,
}

impl Place {
    fn of(heap: u32, info: Info, call: &Call<'_>) -> Result<Self, Fault> {
        let alignment = info.alignment.max(ALIGNMENT_MIN);
        let at = align(heap as usize, alignment)?;
        let mut end = at + DESCRIPTOR_BYTES;
        let mut take = |size: usize| {
            let offset = align(end, alignment)?;
            end = offset.checked_add(size).filter(|end| *end <= u32::MAX as usize).ok_or_else(too_large)?;
            Ok(Span { offset: offset as u32, size: size as u32 })
        };
        let descriptor = Descriptor {
            params: take(call.params.len())?,
            a: take(call.a.unwrap_or(call.out).len())?,
            b: take(call.b.len())?,
            out: take(call.out.len())?,
            scratch: take(info.scratch_bytes as usize)?,
        };
        Ok(Self { at, descriptor, end })
    }
}

fn slice(memory: &mut [u8], span: Span) -> &mut [u8] {
    &mut memory[span.offset as usize..][..span.size as usize]
}

fn align(at: usize, alignment: u32) -> Result<usize, Fault> {
    at.checked_next_multiple_of(alignment as usize).filter(|at| *at <= u32::MAX as usize).ok_or_else(too_large)
}

fn too_large() -> Fault {
    Fault::MemoryLimit { needed: usize::MAX, limit: u32::MAX as usize }
}

fn succeeded(code: i32) -> Result<(), Fault> {
    KernelCode::of(code).map_or(Ok(()), |code| Err(Fault::Code(code)))
}

/// Begins the time of what is called next.
fn arm(store: &mut Store<CallBudget>) {
    store.data_mut().begin();
    store.set_epoch_deadline(1);
}
