//! Which user owns the program that listens on a local port. Known on Linux only.

#[cfg(target_os = "linux")]
use std::fs;

/// Whether every program that listens on the port belongs to this user or to root.
#[cfg(target_os = "linux")]
pub fn is_ours(port: u16) -> bool {
    let own = rustix::process::geteuid().as_raw();
    tables().iter().flat_map(|table| owners(table, port)).all(|owner| owner == 0 || owner == own)
}

#[cfg(not(target_os = "linux"))]
pub fn is_ours(_: u16) -> bool {
    true
}

#[cfg(target_os = "linux")]
fn tables() -> [String; 2] {
    ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default())
}

/// Returns the owners of the sockets in `table` that listen on the port.
#[cfg(target_os = "linux")]
fn owners(table: &str, port: u16) -> impl Iterator<Item = u32> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, at) = fields.get(1)?.rsplit_once(':')?;
        let listens = u16::from_str_radix(at, 16) == Ok(port) && fields.get(3) == Some(&LISTEN);
        if listens { fields.get(7)?.parse().ok() } else { None }
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_port_belongs_to_whoever_listens_on_it() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 5317 1\n\
             1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1002        0 5318 1\n\
             2: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 5319 1\n";
        assert_eq!(owners(table, 8080).collect::<Vec<_>>(), [1001]);
        assert_eq!(owners(table, 8082).count(), 0);
    }

    #[test]
    fn a_port_of_this_process_is_ours() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_ours(port));
        assert_eq!(tables().iter().flat_map(|table| owners(table, port)).count(), 1);
    }
}
