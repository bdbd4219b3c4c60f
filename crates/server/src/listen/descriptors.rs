//! Limit of open files and sockets of this process.

/// Descriptors for everything but connections: models, the memory, the disk tier, the runtime.
const OTHERS: u64 = 48;

/// Some systems name no maximum, and grant no more than this.
#[cfg(unix)]
const WITHOUT_MAXIMUM: u64 = 10_240;

/// Raises the limit as far as possible without privileges, and returns it; `None` if there is none or it is unknown.
/// The usual limit of 1,024 dates from programs that could not handle more.
#[cfg(unix)]
pub fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum.or(limits.current.map(|now| now.max(WITHOUT_MAXIMUM))), ..limits };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files");
            limits.current
        }
    }
}

#[cfg(not(unix))]
pub fn raise_descriptor_limit() -> Option<u64> {
    None
}

/// Returns the number of connections that leaves enough descriptors for everything else.
pub fn connections_within(descriptors: Option<u64>) -> usize {
    let Some(descriptors) = descriptors else { return usize::MAX };
    let room = descriptors.saturating_sub(OTHERS.max(descriptors / 8)).max(1);
    usize::try_from(room).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        for (descriptors, connections) in [(0, 1), (40, 1), (256, 208), (1024, 896), (1 << 20, 917_504)] {
            assert_eq!(connections_within(Some(descriptors)), connections);
        }
        assert_eq!(connections_within(None), usize::MAX);
    }

    #[cfg(unix)]
    #[test]
    fn the_limit_is_raised_to_what_is_allowed() {
        use rustix::process::{Resource, getrlimit};
        let raised = raise_descriptor_limit();
        let limits = getrlimit(Resource::Nofile);
        assert_eq!(raised, limits.current);
        assert!(limits.maximum.is_none_or(|maximum| limits.current == Some(maximum)), "{limits:?}");
    }
}
