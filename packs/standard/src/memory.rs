//! Tensors as the host has placed them. The only file with unsafe code: what it reads and writes is this module's own memory,
//! to which the runtime confines it whatever the descriptor says.

use core::slice::{from_raw_parts, from_raw_parts_mut};

use crate::code;

/// Ten numbers: offset and size of both inputs, the output, scratch memory and parameters.
pub struct Descriptor([u32; 10]);

/// Types that any bytes are valid for.
pub trait Number: Copy {}
impl Number for u8 {}
impl Number for u16 {}
impl Number for u32 {}
impl Number for f32 {}

impl Descriptor {
    pub fn at(offset: u32) -> Self {
        // SAFETY: the host has written ten numbers there, and any are valid.
        Self(unsafe { (offset as usize as *const [u32; 10]).read_unaligned() })
    }

    pub fn a<T: Number>(&self) -> Result<&[T], i32> {
        self.input(0)
    }

    pub fn b<T: Number>(&self) -> Result<&[T], i32> {
        self.input(2)
    }

    /// Both inputs and the output, which lie apart.
    pub fn all<A: Number, B: Number, O: Number>(&mut self) -> Result<(&[A], &[B], &mut [O]), i32> {
        let (offset, count) = self.span::<O>(4).ok_or(code::INVALID_OUTPUT)?;
        // SAFETY: aligned and within this module's memory, or the runtime stops it; the host places tensors apart.
        let out = unsafe { from_raw_parts_mut(offset as *mut O, count) };
        Ok((self.a()?, self.b()?, out))
    }

    /// The parameter of an index, each of which has four bytes.
    pub fn param(&self, index: usize) -> Result<u32, i32> {
        let (offset, count) = self.span::<u32>(8).ok_or(code::INVALID_PARAMETERS)?;
        // SAFETY: as inputs.
        let params = unsafe { from_raw_parts(offset as *const u32, count) };
        params.get(index).copied().ok_or(code::INVALID_PARAMETERS)
    }

    fn input<T: Number>(&self, at: usize) -> Result<&[T], i32> {
        let (offset, count) = self.span::<T>(at).ok_or(code::INVALID_INPUT)?;
        // SAFETY: aligned and within this module's memory, or the runtime stops it; any bytes are valid.
        Ok(unsafe { from_raw_parts(offset as *const T, count) })
    }

    fn span<T>(&self, at: usize) -> Option<(usize, usize)> {
        let (offset, size) = (self.0[at] as usize, self.0[at + 1] as usize);
        (offset != 0 && offset % align_of::<T>() == 0 && size % size_of::<T>() == 0)
            .then_some((offset, size / size_of::<T>()))
    }
}

/// Writes numbers where the host wants them.
pub fn write(offset: u32, numbers: [u32; 4]) {
    // SAFETY: within this module's memory, or the runtime stops it.
    unsafe { (offset as usize as *mut [u32; 4]).write_unaligned(numbers) };
}
