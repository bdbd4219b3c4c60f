//! Priority of background work, which must not slow down the engine.

/// Nice value: a tenth of the time of a thread with the usual priority.
pub const BACKGROUND_NICE: i32 = 10;

/// Lowers the priority of the calling thread for good.
pub fn lower_priority() {
    lower_priority_to(BACKGROUND_NICE);
}

/// Lowers the priority of the calling thread for good, to a nice value of 0 to 19. Does nothing where threads have no priority
/// of their own.
pub fn lower_priority_to(nice: i32) {
    // On Linux this sets the thread's priority, despite its name, and lowering it needs no privilege.
    #[cfg(target_os = "linux")]
    rustix::process::setpriority_process(None, nice).ok();
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}
