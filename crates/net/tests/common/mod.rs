//! Ends of connections for tests: real ones, and a peer that sends whatever the test says.
#![allow(
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test file uses its part"
)]

use bytes::BytesMut;
use std::{collections::VecDeque, future::Future, time::Duration};
use steadfast_net::{
    Connected, Event, Options, Stream, accept, connect,
    parser::{Frame, Parser},
};
use steadfast_protocol::message::{self, FrameKind, Header, Hello, Role, VERSION};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

pub fn hello() -> Hello {
    Hello { version: VERSION, features: 0, role: Role::Client, cluster: None }
}

/// Fails the test instead of hanging it.
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("within a minute")
}

/// Two real ends: the one that connected and the one that accepted.
pub async fn pair(connecting: Options, accepting: Options) -> (Connected, Connected) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accepted = async {
        let (socket, _) = listener.accept().await.unwrap();
        accept(socket, hello(), &accepting).await.unwrap()
    };
    let connected = async { connect(&address, hello(), &connecting).await.unwrap() };
    soon(async { tokio::join!(connected, accepted) }).await
}

/// A peer without manners: frames in and out, nothing kept track of.
pub struct RawPeer {
    pub socket: TcpStream,
    parser: Parser,
    frames: VecDeque<Frame>,
}

impl RawPeer {
    pub fn new(socket: TcpStream) -> Self {
        Self { socket, parser: Parser::default(), frames: VecDeque::new() }
    }

    /// A raw peer that connected to a real end, HELLO exchanged.
    pub async fn connected(options: Options) -> (Self, Connected) {
        Self::connected_with(options, None).await
    }

    /// The same with a receive buffer of so many bytes.
    pub async fn connected_with(options: Options, receive_buffer: Option<u32>) -> (Self, Connected) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes).unwrap();
        }
        let mut raw = Self::new(socket.connect(listener.local_addr().unwrap()).await.unwrap());
        let (socket, _) = listener.accept().await.unwrap();
        let greeting = async {
            raw.send(hello_frame().0, &hello_frame().1, &[]).await;
            assert_eq!(raw.recv().await.unwrap().header.kind, FrameKind::Hello);
        };
        let (accepted, ()) = soon(async { tokio::join!(accept(socket, hello(), &options), greeting) }).await;
        (raw, accepted.unwrap())
    }

    pub async fn send(&mut self, header: Header, body: &[u8], payload: &[u8]) {
        self.socket.write_all(&frame_bytes(header, body, payload)).await.unwrap();
    }

    /// The next frame; `None` once the other end has closed.
    pub async fn recv(&mut self) -> Option<Frame> {
        let mut buffer = vec![0; 64 << 10];
        soon(async {
            loop {
                if let Some(frame) = self.frames.pop_front() {
                    return Some(frame);
                }
                let count = match self.socket.read(&mut buffer).await {
                    Ok(0) | Err(_) => return None,
                    Ok(count) => count,
                };
                let mut input = &buffer[..count];
                while let Some(frame) = self.parser.feed(&mut input).unwrap() {
                    self.frames.push_back(frame);
                }
            }
        })
        .await
    }

    /// The frames that up to so many bytes complete; none once the other end has closed.
    pub async fn read_some(&mut self, bytes: usize) -> Vec<Frame> {
        let mut buffer = vec![0; bytes];
        let count = soon(self.socket.read(&mut buffer)).await.unwrap_or(0);
        let (mut input, mut frames) = (&buffer[..count], Vec::new());
        while let Some(frame) = self.parser.feed(&mut input).unwrap() {
            frames.push(frame);
        }
        frames
    }

    /// The next frame that is not about credit or life.
    pub async fn answer(&mut self) -> Option<Frame> {
        loop {
            let frame = self.recv().await?;
            if !matches!(frame.header.kind, FrameKind::Credit | FrameKind::Ping | FrameKind::Pong) {
                return Some(frame);
            }
        }
    }
}

pub fn hello_frame() -> (Header, Vec<u8>) {
    (Header::new(FrameKind::Hello, 0), message::encode(&hello()))
}

pub fn frame_bytes(header: Header, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = Header {
        body_bytes: u32::try_from(body.len()).unwrap(),
        payload_bytes: u32::try_from(payload.len()).unwrap(),
        ..header
    };
    [&header.to_bytes(body)[..], body, payload].concat()
}

pub fn credit(header: Header, credit: u32) -> Header {
    Header { credit, ..header }
}

/// Answers every stream with its own request, until the connection is gone.
pub async fn echo(mut connected: Connected) {
    while let Some((opened, stream)) = connected.incoming.next().await {
        let _ = stream.end(opened.body);
    }
}

pub async fn expect_data(stream: &mut Stream) -> (Vec<u8>, BytesMut) {
    match soon(stream.recv()).await {
        Some(Event::Data { body, payload }) => (body, payload),
        other => panic!("DATA expected, got {other:?}"),
    }
}
