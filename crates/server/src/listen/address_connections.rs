//! Counts connections by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::ConnectionLimits;
use crate::body_budget::network;

/// Counts the connections of every address.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionsByAddress(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection of an address, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Member {
    connections: ConnectionsByAddress,
    network: IpAddr,
}

impl ConnectionsByAddress {
    /// Returns `None` if the address has reached its maximum.
    pub(super) fn join(&self, ip: IpAddr, limits: &ConnectionLimits) -> Option<Member> {
        let network = network(ip);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(network).or_default();
        if *count >= allowed(network, limits) {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Member { connections: self.clone(), network })
    }
}

/// By default half of all, except for this machine: a local proxy brings everybody's.
fn allowed(network: IpAddr, limits: &ConnectionLimits) -> usize {
    match limits.address_connections_max {
        Some(count_max) => count_max,
        None if network.is_loopback() => limits.connections_max,
        None => limits.connections_max.div_ceil(2),
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut counts = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ips: &[&str], address_connections_max: Option<usize>) -> usize {
        let limits = ConnectionLimits { connections_max: 10, address_connections_max, ..ConnectionLimits::default() };
        let connections = ConnectionsByAddress::default();
        let ips = ips.iter().cycle().take(100);
        let members: Vec<Member> = ips.filter_map(|ip| connections.join(ip.parse().unwrap(), &limits)).collect();
        let count = members.len();
        drop(members);
        assert!(connections.0.lock().unwrap().is_empty(), "nothing is kept of those who left");
        count
    }

    #[test]
    fn an_address_has_its_share_and_no_more() {
        assert_eq!(check(&["192.168.1.7"], None), 5);
        assert_eq!(check(&["::ffff:192.168.1.7", "192.168.1.7"], None), 5, "the same, written otherwise");
        assert_eq!(check(&["2001:db8::1", "2001:db8::2"], None), 5, "one client has many of them");
        assert_eq!(check(&["2001:db8::1", "2001:db8:0:1::1"], None), 10);
        assert_eq!(check(&["127.0.0.1"], None), 10, "a proxy may be there");
        assert_eq!(check(&["::1"], None), 10);
        assert_eq!(check(&["127.0.0.1"], Some(3)), 3);
    }
}
