//! How much of what was written the peer's system does not have yet.
//!
//! A PING waits behind everything that was written before it: on a slow link for longer than any patience with a peer. What
//! the kernel still holds tells a peer that cannot have heard it yet from one that does not answer.

use rustix::ioctl::{Getter, Opcode, ioctl};
use tokio::net::TcpStream;

/// `SIOCOUTQ`, as most architectures number it; on others the question is not asked.
const OUTGOING_QUEUE: Opcode = 0x5411;
const IS_KNOWN: bool = cfg!(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
));

/// Bytes that were written and not acknowledged; 0 where the system does not say.
pub(crate) fn unacknowledged_bytes(socket: &TcpStream) -> u64 {
    if !IS_KNOWN {
        return 0;
    }
    // SAFETY: on these architectures the number is this question, which fills in one C int and changes nothing.
    let answer = unsafe { ioctl(socket, Getter::<OUTGOING_QUEUE, i32>::new()) };
    answer.ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::unacknowledged_bytes;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn what_a_peer_does_not_take_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        assert_eq!(unacknowledged_bytes(&socket), 0);
        let mut written = 0;
        loop {
            socket.writable().await.unwrap();
            match socket.try_write(&[0; 64 << 10]) {
                Ok(count) => written += count as u64,
                Err(_) => break,
            }
        }
        let left = unacknowledged_bytes(&socket);
        assert!(left > 0 && left < written, "{left} of {written}");
        // Taken by the peer: nothing is left.
        let mut read = 0;
        while read < written {
            peer.readable().await.unwrap();
            read += peer.try_read(&mut [0; 64 << 10]).map_or(0, |count| count as u64);
        }
        while unacknowledged_bytes(&socket) > 0 {
            tokio::task::yield_now().await;
        }
    }
}
