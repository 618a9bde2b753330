//! How connections begin, and what happens to peers that are none.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
use common::*;
use std::time::Duration;
use steadfast_net::{
    ConnectError, Lost, Open, Options, Server, Violation, accept, connect, parser::ParseError,
};
use steadfast_protocol::{
    ClusterId,
    message::{self, FrameKind, Header, HeaderError, Hello, VERSION},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

async fn greet(
    connecting: Hello,
    accepting: Hello,
) -> (Result<u64, ConnectError>, Result<u64, ConnectError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = Options::default();
    let accepted = async {
        let (socket, _) = listener.accept().await.unwrap();
        accept(socket, accepting, &options).await.map(|connected| connected.connection.features())
    };
    let connected = async {
        connect(&address, connecting, &options).await.map(|connected| connected.connection.features())
    };
    soon(async { tokio::join!(connected, accepted) }).await
}

#[tokio::test]
async fn features_are_intersected() {
    let both = greet(Hello { features: 0b0110, ..hello() }, Hello { features: 0b1100, ..hello() }).await;
    assert_eq!(both, (Ok(0b0100), Ok(0b0100)));
}

#[tokio::test]
async fn a_higher_version_meets_ours_and_an_earlier_one_is_refused() {
    let (one, other) = greet(Hello { version: VERSION + 1, ..hello() }, hello()).await;
    assert!(one.is_ok() && other.is_ok());
    let (_, other) = greet(Hello { version: 1, ..hello() }, hello()).await;
    assert_eq!(other, Err(ConnectError::Version { theirs: 1, needed: VERSION }));
}

#[tokio::test]
async fn another_clusters_peer_is_refused_by_both_and_both_know_why() {
    let (a, b) = (ClusterId(1), ClusterId(2));
    let both = greet(Hello { cluster: Some(a), ..hello() }, Hello { cluster: Some(b), ..hello() }).await;
    let expected = (
        Err(ConnectError::Cluster { ours: a, theirs: b }),
        Err(ConnectError::Cluster { ours: b, theirs: a }),
    );
    assert_eq!(both, expected);
    let (one, other) = greet(Hello { cluster: Some(a), ..hello() }, hello()).await;
    assert!(one.is_ok() && other.is_ok(), "a peer that knows no cluster yet is taken");
}

#[tokio::test]
async fn a_peer_that_accepts_and_says_nothing_is_given_up() {
    // The kernel accepts for a listener that never does.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let waited = Duration::from_millis(50);
    let options = Options { hello_timeout: waited, ..Options::default() };
    let address = listener.local_addr().unwrap().to_string();
    let error = soon(connect(&address, hello(), &options)).await.unwrap_err();
    assert_eq!(error, ConnectError::NoHello { waited });
}

#[tokio::test]
async fn a_port_nobody_listens_on_is_unreachable() {
    // Held, so that no other test's server is found there.
    let held = TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = held.local_addr().unwrap().to_string();
    let error = soon(connect(&address, hello(), &Options::default())).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn another_protocol_is_named_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let web = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(&b"HTTP/1.1 400 Bad Request\r\n".repeat(3)).await.unwrap();
        socket
    };
    let options = Options::default();
    let (error, _socket) = soon(async { tokio::join!(connect(&address, hello(), &options), web) }).await;
    let magic = ParseError::Header(HeaderError::Magic { found: *b"HT" });
    assert_eq!(error.unwrap_err(), ConnectError::Lost(Lost::Violation(Violation::Parse(magic))));
}

/// Starts an echo server and gives its address.
async fn echo_server(options: Options, connections_max: usize) -> String {
    let server = Server::bind("127.0.0.1:0").await.unwrap().connections_max(connections_max);
    let address = server.local_addr().unwrap().to_string();
    tokio::spawn(server.serve(hello(), options, echo));
    address
}

#[tokio::test]
async fn garbage_closes_its_own_connection_and_no_other() {
    let address = echo_server(Options::default(), 100).await;
    let good = connect(&address, hello(), &Options::default()).await.unwrap().connection;
    let garbage: Vec<Vec<u8>> = vec![
        vec![0xab; 1 << 20],
        vec![0; 48],
        b"GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: somebody\r\n\r\n".to_vec(),
        // A frame that is fine, but no HELLO.
        frame_bytes(Header::new(FrameKind::Ping, 0), &[], &[]),
        // A HELLO whose body is none.
        frame_bytes(Header::new(FrameKind::Hello, 0), &[0xff; 30], &[]),
        // A HELLO, and then an endless stream of nonsense.
        [frame_bytes(hello_frame().0, &hello_frame().1, &[]), vec![0x5a; 1 << 20]].concat(),
    ];
    for bytes in garbage {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        // The server may close while this still writes.
        let _ = soon(socket.write_all(&bytes)).await;
        let mut heard = Vec::new();
        let _ = soon(socket.read_to_end(&mut heard)).await;
        assert!(heard.len() < 1000, "nothing but a HELLO comes back");
        let open = Open { body: b"still here".to_vec(), ..Open::default() };
        assert_eq!(soon(good.call(open)).await.unwrap().0, b"still here");
    }
}

#[tokio::test]
async fn a_stream_of_bytes_cut_anywhere_hurts_nobody() {
    let address = echo_server(Options::default(), 10_000).await;
    let good = connect(&address, hello(), &Options::default()).await.unwrap().connection;
    let bytes = [
        frame_bytes(hello_frame().0, &hello_frame().1, &[]),
        frame_bytes(Header::new(FrameKind::Open, 1), b"request", &[]),
        frame_bytes(Header::new(FrameKind::Cancel, 1), &[], &[]),
    ]
    .concat();
    for cut in 0..=bytes.len() {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        socket.write_all(&bytes[..cut]).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut heard = Vec::new();
        let _ = soon(socket.read_to_end(&mut heard)).await;
    }
    let open = Open { body: b"still here".to_vec(), ..Open::default() };
    assert_eq!(soon(good.call(open)).await.unwrap().0, b"still here");
}

#[tokio::test]
async fn silent_connections_are_dropped_and_those_above_the_limit_closed() {
    let options = Options { hello_timeout: Duration::from_millis(50), ..Options::default() };
    let address = echo_server(options, 2).await;
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let mut third = TcpStream::connect(&address).await.unwrap();
    let mut heard = Vec::new();
    // Closed at once (0 bytes), unless the first two were dropped already.
    let _ = soon(third.read_to_end(&mut heard)).await;
    for mut socket in silent {
        heard.clear();
        let _ = soon(socket.read_to_end(&mut heard)).await;
        assert!(heard.len() > 48, "a HELLO came, then the end");
    }
    // The places are free again, as soon as the server has seen the tasks end.
    soon(async {
        while connect(&address, hello(), &Options::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn who_keeps_a_place_without_a_stream_gives_it_to_a_newcomer() {
    let address = echo_server(Options::default(), 1).await;
    let mut idle = RawPeer::new(TcpStream::connect(&address).await.unwrap());
    idle.send(hello_frame().0, &hello_frame().1, &[]).await;
    assert_eq!(idle.recv().await.unwrap().header.kind, FrameKind::Hello);
    // The server has to have seen the HELLO.
    idle.send(Header::new(FrameKind::Open, 1), b"here", &[]).await;
    assert_eq!(idle.answer().await.unwrap().body, b"here");
    let newcomer = soon(connect(&address, hello(), &Options::default())).await.unwrap().connection;
    let open = Open { body: b"served".to_vec(), ..Open::default() };
    assert_eq!(soon(newcomer.call(open)).await.unwrap().0, b"served");
    assert!(idle.recv().await.is_none(), "its place was needed");
}

/// Each has a socket until it is closed, which may take as long as it likes.
#[tokio::test]
async fn those_who_are_refused_count_until_they_are_gone() {
    let of = |cluster| Hello { cluster: Some(ClusterId(cluster)), ..hello() };
    let server = Server::bind("127.0.0.1:0").await.unwrap().connections_max(4);
    let address = server.local_addr().unwrap().to_string();
    // However long this test is held up.
    let lingering = Options { linger: Duration::from_secs(600), ..Options::default() };
    tokio::spawn(server.serve(of(1), lingering, echo));
    let foreign = frame_bytes(Header::new(FrameKind::Hello, 0), &message::encode(&of(2)), &[]);
    let (mut sockets, mut told) = (Vec::new(), 0);
    for _ in 0..40 {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        // Those above the limit are closed unheard.
        let _ = soon(socket.write_all(&foreign)).await;
        let mut heard = Vec::new();
        let _ = soon(socket.read_to_end(&mut heard)).await;
        told += usize::from(!heard.is_empty());
        sockets.push(socket);
    }
    assert_eq!(told, 4, "the others would have made more sockets than there may be");
    drop(sockets);
    soon(async {
        while connect(&address, of(1), &Options::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn who_has_a_stream_open_keeps_its_place() {
    let server = Server::bind("127.0.0.1:0").await.unwrap().connections_max(1);
    let address = server.local_addr().unwrap().to_string();
    tokio::spawn(server.serve(hello(), Options::default(), |mut connected| async move {
        let mut held = Vec::new();
        while let Some((_, stream)) = connected.incoming.next().await {
            stream.send_now(b"held".to_vec(), bytes::Bytes::new()).unwrap();
            held.push(stream);
        }
    }));
    let first = connect(&address, hello(), &Options::default()).await.unwrap().connection;
    let mut stream = first.open(Open::default()).unwrap();
    expect_data(&mut stream).await;
    assert!(soon(connect(&address, hello(), &Options::default())).await.is_err());
    assert_eq!(first.lost(), None);
}
