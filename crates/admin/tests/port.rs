//! The port as clients of every kind find it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

use std::{net::SocketAddr, sync::Arc, time::Duration};
use steadfast_admin::{Admin, Page, Visible};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Long: only a port that is held up for ever needs so much.
const PATIENCE: Duration = Duration::from_secs(60);

struct Sick(bool, usize);

impl Visible for Sick {
    async fn metrics(&self) -> Page {
        let mut page = Page::new();
        let samples = page.gauge("sick", "Whether it is sick");
        for sample in 0..self.1 {
            samples.whole(&[("sample", &sample.to_string())], self.0.into());
        }
        page
    }

    async fn health(&self) -> Result<(), String> {
        if self.0 { Err("a device failed".to_owned()) } else { Ok(()) }
    }
}

async fn port(sick: bool, samples: usize) -> Admin {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Admin::start(any, Arc::new(Sick(sick, samples))).await.unwrap()
}

async fn send(admin: &Admin, request: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(admin.address()).await.unwrap();
    // A refusal may close the socket before all is written.
    let _ = socket.write_all(request).await;
    socket
}

async fn answer(mut socket: TcpStream) -> String {
    let mut answer = Vec::new();
    // A connection that was reset has said what it had to say.
    let _ = timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("answered or closed in time");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn ask(admin: &Admin, request: &str) -> String {
    answer(send(admin, request.as_bytes()).await).await
}

#[tokio::test]
async fn metrics_and_health() {
    let well = port(false, 1).await;
    let metrics = ask(&well, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.contains("steadfast_sick{sample=\"0\"} 0\n"), "{metrics}");
    let health = ask(&well, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("\r\n\r\nok\n"), "{health}");
    let sick = ask(&port(true, 1).await, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(sick.starts_with("HTTP/1.1 503") && sick.ends_with("a device failed\n"), "{sick}");
}

#[tokio::test]
async fn what_is_not_there_is_refused() {
    let port = port(false, 1).await;
    assert!(ask(&port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.starts_with("HTTP/1.1 404"));
    assert!(ask(&port, "DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.starts_with("HTTP/1.1 405"));
    assert!(ask(&port, "\x16\x03\x01 garbage\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let long = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let refused = ask(&port, &long).await;
    assert!(!refused.contains("200 OK"), "{refused}");
    assert!(ask(&port, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn peers_that_say_nothing_or_read_nothing_keep_nobody_out() {
    // An answer far beyond what a socket's buffers hold.
    let port = port(false, 200_000).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(send(&port, b"").await);
        held.push(send(&port, b"GET /metr").await);
        held.push(send(&port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await);
    }
    for _ in 0..4 {
        let health = ask(&port, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    }
    drop(held);
}
