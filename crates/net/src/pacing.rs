//! Connections that do not leave the machine are not paced.
//!
//! Where the system's congestion control is BBR, it spreads what is sent over time, each part waiting for a timer of its own. Within
//! one machine nothing is lost and no queue builds up that this could spare, and in a virtual machine each of those timers leaves the
//! guest: one socket carried 3.2 GB/s, and 6.7 without. Reno, which every Linux has and lets anybody choose, sends at once as long
//! as nothing is lost.
//!
//! What is paced stays so, whatever is chosen later. So the choice comes before there is a connection, and those that
//! do leave the machine are given back to the system's own, before anything is sent:
//!
//! ```text
//!   socket, listener ──off──▶ unpaced ──connected, accepted──▶ within the machine: as it is
//!                                                          └─▶ another machine: settle, the system's choice
//! ```

use rustix::{
    fd::AsFd,
    net::{
        getpeername, getsockname,
        sockopt::{set_tcp_congestion, tcp_congestion},
    },
};
use std::net::SocketAddr;

/// What those are called that pace: BBR, of all its versions.
const PACED: &str = "bbr";
const UNPACED: &str = "reno";

/// What the system chose for a socket, where something else was chosen for it here.
#[derive(Clone, Debug)]
pub struct Pacing {
    chosen: Option<String>,
}

impl Pacing {
    /// Has a TCP socket that is not connected yet not pace, or connections that a listening one will accept. Nothing changes where
    /// the system would not have paced, or refuses.
    pub fn off(socket: impl AsFd) -> Self {
        let paced = tcp_congestion(&socket).ok().filter(|chosen| chosen.starts_with(PACED));
        Self { chosen: paced.filter(|_| set_tcp_congestion(socket, UNPACED).is_ok()) }
    }

    /// Gives the socket's connection, of which nothing was sent yet, back to the system's choice if it leaves the machine.
    pub fn settle(&self, connection: impl AsFd) {
        let Some(chosen) = &self.chosen else { return };
        if !stays(&connection) && set_tcp_congestion(connection, chosen).is_err() {
            tracing::debug!(chosen, "congestion control: the system took its own choice back");
        }
    }
}

/// Whether both ends of a connection are known to be on this machine.
fn stays(connection: impl AsFd) -> bool {
    let ours = getsockname(&connection).map(SocketAddr::try_from);
    let theirs = getpeername(&connection).map(|peer| peer.map(SocketAddr::try_from));
    matches!((ours, theirs), (Ok(Ok(ours)), Ok(Some(Ok(theirs)))) if within_machine(ours, theirs))
}

/// Whether these are addresses of one machine: one that is never another's, or the same at both ends.
fn within_machine(ours: SocketAddr, theirs: SocketAddr) -> bool {
    let (ours, theirs) = (ours.ip().to_canonical(), theirs.ip().to_canonical());
    theirs.is_loopback() || ours == theirs
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// What the system chose, or had been chosen for a listener, is what its connections begin with.
    #[test]
    fn connections_within_the_machine_begin_unpaced_where_the_system_paces() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = tcp_congestion(&listener).unwrap();
        let pacing = Pacing::off(&listener);
        assert_eq!(pacing.chosen.as_ref(), before.starts_with(PACED).then_some(&before));
        let _connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        pacing.settle(&accepted);
        let expected = if before.starts_with(PACED) { UNPACED } else { before.as_str() };
        assert_eq!(tcp_congestion(&accepted).unwrap(), expected);
    }

    /// A listener whose own choice was another than the one its connections have now: those that stay do not get it.
    #[test]
    fn only_what_leaves_the_machine_is_given_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_tcp_congestion(&listener, UNPACED).unwrap();
        let unconnected = TcpListener::bind("127.0.0.1:0").unwrap();
        let chosen = tcp_congestion(&unconnected).unwrap();
        let pacing = Pacing { chosen: Some(chosen.clone()) };
        let _connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        pacing.settle(&accepted);
        assert_eq!(tcp_congestion(&accepted).unwrap(), UNPACED);
        // Nothing says of this one that it stays.
        set_tcp_congestion(&unconnected, UNPACED).unwrap();
        pacing.settle(&unconnected);
        assert_eq!(tcp_congestion(&unconnected).unwrap(), chosen);
        // Refused, it is no worse off.
        Pacing { chosen: Some("no such thing".into()) }.settle(&unconnected);
        assert_eq!(tcp_congestion(&unconnected).unwrap(), chosen);
    }

    #[test]
    fn addresses_of_one_machine_are_told_from_others() {
        let within =
            |ours: &str, theirs: &str| within_machine(ours.parse().unwrap(), theirs.parse().unwrap());
        assert!(within("127.0.0.1:1", "127.0.0.9:2"));
        assert!(within("[::1]:1", "[::1]:2"));
        assert!(within("192.0.2.1:1", "192.0.2.1:2"));
        assert!(within("[::ffff:192.0.2.1]:1", "192.0.2.1:2"));
        assert!(!within("192.0.2.1:1", "192.0.2.2:1"));
        assert!(!within("[2001:db8::1]:1", "[2001:db8::2]:1"));
    }
}
