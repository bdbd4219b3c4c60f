//! Buffers aligned to a cache line, zeroed lazily by the operating system.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::{fmt, ptr, slice};

/// Alignment of every buffer: a cache line, and the widest vector register.
const ALIGN: usize = 64;

/// Plain numbers, for which all-zero bytes are a valid value.
///
/// # Safety
/// Implementors have no padding, no invalid bit patterns and no destructor.
pub unsafe trait Number: Copy + Send + Sync + 'static {}
// SAFETY: primitive numbers.
unsafe impl Number for u8 {}
// SAFETY: as above.
unsafe impl Number for i8 {}
// SAFETY: as above.
unsafe impl Number for u16 {}
// SAFETY: as above.
unsafe impl Number for i32 {}
// SAFETY: as above.
unsafe impl Number for f32 {}

/// A boxed slice of numbers with cache-line alignment.
pub struct AlignedVec<T: Number> {
    data: ptr::NonNull<T>,
    len: usize,
}

impl<T: Number> AlignedVec<T> {
    /// `len` zeros. Large buffers cost no memory until they are touched.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { data: ptr::NonNull::dangling(), len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a non-zero size, since `len` > 0 and no `Number` is zero-sized.
        let data = unsafe { alloc_zeroed(layout) }.cast::<T>();
        let Some(data) = ptr::NonNull::new(data) else { handle_alloc_error(layout) };
        Self { data, len }
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<T>()).expect("buffer size fits the address space");
        Layout::from_size_align(bytes, ALIGN).expect("buffer size fits the address space")
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        self.data.as_ptr()
    }
}

impl<T: Number> Deref for AlignedVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `data` points to `len` initialized numbers that we own (dangling is fine for `len` 0).
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T: Number> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl<T: Number> Drop for AlignedVec<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `zeroed` with this same layout.
            unsafe { dealloc(self.data.as_ptr().cast(), Self::layout(self.len)) }
        }
    }
}

// SAFETY: an owned buffer of plain numbers; nothing is shared behind the pointer.
unsafe impl<T: Number> Send for AlignedVec<T> {}
// SAFETY: shared access is read-only.
unsafe impl<T: Number> Sync for AlignedVec<T> {}

impl<T: Number> fmt::Debug for AlignedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedVec({} x {})", self.len, std::any::type_name::<T>())
    }
}
