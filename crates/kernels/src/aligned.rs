//! Buffers aligned to a cache line, zeroed lazily by the operating system.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
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
unsafe impl Number for u64 {}
// SAFETY: as above.
unsafe impl Number for f32 {}

/// A boxed slice of numbers with cache-line alignment.
pub struct AlignedVec<T: Number> {
    data: ptr::NonNull<T>,
    len: usize,
    /// What was allocated: `data` is the first aligned place in it.
    base: *mut u8,
}

impl<T: Number> AlignedVec<T> {
    /// `len` zeros. Large buffers cost no memory until they are touched.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { data: ptr::NonNull::dangling(), len, base: ptr::null_mut() };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a non-zero size.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the allocation is `ALIGN` bytes longer than the numbers, so the next aligned address is inside it.
        let data = unsafe { base.add(base.align_offset(ALIGN)) };
        prefer_huge_pages(base, layout.size());
        Self { data: ptr::NonNull::new(data).expect("not null").cast(), len, base }
    }

    /// The system zeroes lazily only at its own alignment; a larger one would be filled with zeros by hand, and so
    /// be taken from memory at once. We ask for `ALIGN` bytes more instead.
    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(ALIGN));
        bytes
            .and_then(|bytes| Layout::from_size_align(bytes, align_of::<T>()).ok())
            .expect("buffer size fits the address space")
    }

    /// Gives the memory of a part back to the system, in whole pages: these hold zeros then. What is left of it holds what it
    /// held before, as does all of it where the system has no such call.
    pub(crate) fn release_to_os(&mut self, part: Range<usize>) {
        /// Of the systems that we know; more is a multiple.
        const SYSTEM_PAGE: usize = 64 << 10;
        let part = &mut self[part];
        let (start, bytes) = (part.as_mut_ptr().cast::<u8>(), size_of_val(part));
        let skipped = start.align_offset(SYSTEM_PAGE);
        let whole = bytes.saturating_sub(skipped) / SYSTEM_PAGE * SYSTEM_PAGE;
        #[cfg(target_os = "linux")]
        if whole > 0 {
            // SAFETY: whole pages within an allocation of our own, which is private and anonymous as all of the allocator's, so
            // that they read as zeros from now on: valid numbers. `&mut self` says that nobody looks at them.
            unsafe { libc::madvise(start.add(skipped).cast(), whole, libc::MADV_DONTNEED) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = whole;
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        self.data.as_ptr()
    }
}

/// Asks for huge pages where a buffer holds whole ones. Advice only: nothing depends on it but speed.
fn prefer_huge_pages(start: *mut u8, len: usize) {
    const HUGE_PAGE: usize = 2 << 20;
    let skipped = start.align_offset(HUGE_PAGE);
    let whole = len.saturating_sub(skipped) / HUGE_PAGE * HUGE_PAGE;
    #[cfg(target_os = "linux")]
    if whole > 0 {
        // SAFETY: the range lies within a fresh allocation, and the advice does not change what it holds.
        unsafe { libc::madvise(start.add(skipped).cast(), whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = whole;
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
            unsafe { dealloc(self.base, Self::layout(self.len)) }
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
