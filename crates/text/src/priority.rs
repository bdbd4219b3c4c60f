//! Priority of background work, which must not slow down the engine.

/// Nice value: a tenth of the time of a thread with the usual priority.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Lowers the priority of the calling thread for good. Does nothing where threads have no priority of their own.
pub fn lower_priority() {
    // On Linux this sets the thread's priority, despite its name, and lowering it needs no privilege.
    #[cfg(target_os = "linux")]
    rustix::process::setpriority_process(None, NICE).ok();
}
