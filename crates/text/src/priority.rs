//! Work that must not slow down those who compute.

/// Behind whatever has the usual priority: as much as a tenth of it.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// From now on the calling thread yields to others, for good. Does nothing where a thread has no priority of its own.
pub fn lower_priority() {
    // On Linux this is about the thread, despite its name, and everybody may have less of it.
    #[cfg(target_os = "linux")]
    rustix::process::setpriority_process(None, NICE).ok();
}
