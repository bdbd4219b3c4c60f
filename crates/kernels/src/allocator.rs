//! Memory that was freed goes back to the system.
//!
//! The allocator of most Linux systems keeps it, in an arena for each thread: a server in which models come and go, and in
//! which dozens of threads prepare requests, would hold hundreds of megabytes that it does not use.

/// Threads share this many arenas: contention is rare, as whatever computes does not allocate.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS_MAX: i32 = 2;

/// Bounds how much memory the allocator keeps. For the start of a process; does nothing where the allocator is another.
pub fn bound_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number of the allocator, which has a lock for it.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX);
    }
}

/// Gives freed memory back to the system. Takes milliseconds, during which other threads may have to wait.
pub fn trim_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: only gives back pages without anything in them, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
