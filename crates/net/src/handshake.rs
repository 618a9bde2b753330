//! How two ends become a connection: TCP, then a HELLO each way at once, each within its time.

use crate::{
    ConnectError, Connection, Incoming, Lost, Options, lanes::OutFrame, pacing::Pacing, reader::Reader,
    shared::Owner, shared::Shared, writer::Writer,
};
use bytes::Bytes;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use steadfast_protocol::message::{self, FrameKind, Header, Hello, VERSION};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout},
};

/// The lowest protocol version this code still speaks.
const VERSION_MIN: u8 = 10;

/// A connection whose ends know each other.
#[derive(Debug)]
pub struct Connected {
    /// For opening streams.
    pub connection: Connection,
    /// Who is at the other end.
    pub peer: Hello,
    /// Streams that the peer opens.
    pub incoming: Incoming,
}

/// Connects to `address` (`host:port`) and exchanges HELLO.
///
/// # Errors
/// Every [`ConnectError`].
pub async fn connect(address: &str, ours: Hello, options: &Options) -> Result<Connected, ConnectError> {
    let waited = options.connect_timeout;
    let unreachable =
        |detail: &str| ConnectError::Unreachable { address: address.into(), detail: detail.into() };
    let (socket, took) = match timeout(waited, reach(address)).await {
        Ok(Ok(reached)) => reached,
        Ok(Err(error)) => return Err(unreachable(&error.to_string())),
        Err(_) => return Err(ConnectError::TimedOut { address: address.into(), waited }),
    };
    if is_its_own_peer(&socket) {
        // Closed without TIME_WAIT, which would keep its server from the port for a minute. Failing that, it is kept.
        let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        return Err(unreachable("nobody listens there"));
    }
    let way = took + options.link.delay;
    greet(socket, Some(way), ours, options).await
}

/// Connects to the first of the addresses that answers, and how long that one took: neither the search for a name nor addresses
/// where nobody listens make the way longer.
async fn reach(address: &str) -> std::io::Result<(TcpStream, Duration)> {
    let mut failed = None;
    for address in tokio::net::lookup_host(address).await? {
        let begun = Instant::now();
        match connected(address).await {
            Ok(socket) => return Ok((socket, begun.elapsed())),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| std::io::Error::other("the name has no address")))
}

/// Connects to this address.
async fn connected(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    let pacing = Pacing::off(&socket);
    let connected = socket.connect(address).await?;
    pacing.settle(&connected);
    Ok(connected)
}

/// Whether a connection was answered by itself: where nobody listens on a port of this machine that the kernel may
/// also give to who connects, a client that tries again and again is some time given that very port, and TCP connects
/// it with itself (simultaneous open). It would hold its server's port, too.
fn is_its_own_peer(socket: &TcpStream) -> bool {
    matches!((socket.local_addr(), socket.peer_addr()), (Ok(ours), Ok(theirs)) if ours == theirs)
}

/// Exchanges HELLO on a connection that was accepted.
///
/// # Errors
/// Every [`ConnectError`] but those of reaching the peer.
pub async fn accept(socket: TcpStream, ours: Hello, options: &Options) -> Result<Connected, ConnectError> {
    greet(socket, None, ours, options).await
}

/// `way`: at the end that connected, what TCP took for it.
async fn greet(
    socket: TcpStream,
    way: Option<Duration>,
    ours: Hello,
    options: &Options,
) -> Result<Connected, ConnectError> {
    let io = |error: std::io::Error| ConnectError::Lost(Lost::Io { kind: error.kind() });
    socket.set_nodelay(true).map_err(io)?;
    if let Some(bytes) = options.send_buffer_bytes {
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, bytes)
            .map_err(|error| io(error.into()))?;
    }
    // What a peer does not acknowledge for so long ends the connection, whether or not a PING is on its way.
    let lost_after_ms = u32::try_from(options.lost_after.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(&socket, lost_after_ms).map_err(|error| io(error.into()))?;
    let (read_half, write_half) = socket.into_split();
    let shared = Arc::new(Shared::new(way.is_some(), options.clone()));
    let owner = Arc::new(Owner(shared.clone()));
    let hello = OutFrame::new(Header::new(FrameKind::Hello, 0), message::encode(&ours), Bytes::new());
    shared.lock().lanes.push_control(hello);
    let writer = tokio::spawn(Writer::new(shared.clone(), write_half).run());
    shared.lock().tasks.push(writer.abort_handle());

    // A peer that is no peer at all is cut off at once.
    let mut reader = Reader::new(shared.clone(), read_half);
    let waited = options.hello_timeout;
    let until = Instant::now() + waited;
    let body = match tokio::time::timeout_at(until, reader.hello()).await {
        Ok(Ok(body)) => body,
        Ok(Err(lost)) => {
            shared.fail(lost.clone());
            return Err(lost.into());
        }
        Err(_) => {
            shared.fail(Lost::Silent { silence: waited });
            return Err(ConnectError::NoHello { waited });
        }
    };
    let Ok(peer) = message::decode::<Hello>(&body) else {
        shared.fail(Lost::ClosedHere);
        return Err(ConnectError::Greeting { body_bytes: body.len() });
    };
    let version = peer.version.min(ours.version).min(VERSION);
    if let Some(refusal) = refusal(version, &ours, &peer) {
        // The HELLO still goes, so that the peer learns from it why.
        drop(owner);
        if way.is_none() {
            // Among those that were accepted it counts as long as it has its socket.
            tokio::select! {
                _over = writer => {}
                () = reader.until_closed() => shared.fail(Lost::Closed),
            }
        }
        return Err(refusal);
    }
    let task = tokio::spawn(reader.run());
    shared.lock().tasks.push(task.abort_handle());
    let features = ours.features & peer.features;
    let connection = Connection::new(owner.clone(), version, features, peer.role, way);
    Ok(Connected { connection, peer, incoming: Incoming::new(owner) })
}

/// Why two ends are not for each other; `version` is the highest that both speak.
fn refusal(version: u8, ours: &Hello, peer: &Hello) -> Option<ConnectError> {
    if version < VERSION_MIN {
        return Some(ConnectError::Version { theirs: peer.version, needed: VERSION_MIN });
    }
    match (ours.cluster, peer.cluster) {
        (Some(ours), Some(theirs)) if ours != theirs => Some(ConnectError::Cluster { ours, theirs }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::{Duration, is_its_own_peer};
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn a_connection_with_itself_is_told_from_others() {
        let alone = TcpSocket::new_v4().unwrap();
        alone.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = alone.local_addr().unwrap();
        let alone = alone.connect(address).await.unwrap();
        assert!(is_its_own_peer(&alone));
        // Let go, its port is its server's again at once.
        rustix::net::sockopt::set_socket_linger(&alone, Some(Duration::ZERO)).unwrap();
        drop(alone);
        TcpListener::bind(address).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpSocket::new_v4().unwrap().connect(listener.local_addr().unwrap());
        let (connected, accepted) = tokio::join!(connecting, listener.accept());
        assert!(!is_its_own_peer(&connected.unwrap()) && !is_its_own_peer(&accepted.unwrap().0));
    }
}
