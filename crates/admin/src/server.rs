//! The port: few connections, short ones, of bounded size.
//!
//! Whoever connects gets one answer. A peer that says nothing, says nonsense, says too much or does not read its answer
//! holds one of `CONNECTIONS_MAX` places until `CONNECTION_MAX` is over; when all are taken the oldest gives way to
//! the newest, so that no number of silent peers keeps a scraper out. Memory: that many answers, and the heads of that
//! many requests.

use crate::{Format, Page};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    collections::VecDeque, convert::Infallible, future::Future, io, net::SocketAddr, sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle, JoinSet},
    time::{sleep, timeout},
};

/// Connections at once. Eight: a scraper, a person, a health check and as many again.
const CONNECTIONS_MAX: usize = 8;
/// How long a request's head may take to arrive. Picked by eye: a scraper sends it in one packet.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long a connection may last, its answer included. The usual patience of a scraper.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Bytes of a request's head; a longer one is refused (431).
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Lines of a request's head.
const HEADERS_MAX: usize = 64;
/// How long to rest when the system cannot accept (out of files or memory): long enough not to spin.
const REST: Duration = Duration::from_millis(50);

/// A server that can be watched.
pub trait Visible: Send + Sync + 'static {
    /// Its metrics now. Must not wait for a medium.
    fn metrics(&self) -> impl Future<Output = Page> + Send;

    /// Whether it can do its work.
    ///
    /// # Errors
    /// Why not, for a person.
    fn health(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// An open admin port; closed when dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Admin {
    /// Listens on `address` (port 0 takes a free one) and answers from then on.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn start(address: SocketAddr, visible: Arc<impl Visible>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { address, serving: tokio::spawn(serve(listener, visible)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, visible: Arc<impl Visible>) {
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    let mut failing = false;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    failing = false;
                    oldest_first.retain(|connection| !connection.is_finished());
                    while oldest_first.len() >= CONNECTIONS_MAX
                        && let Some(oldest) = oldest_first.pop_front()
                    {
                        oldest.abort();
                    }
                    let visible = visible.clone();
                    oldest_first.push_back(connections.spawn(connection(socket, visible)));
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "the admin port cannot accept");
                    }
                    sleep(REST).await;
                }
            },
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    tracing::error!(%error, "an admin request's handler panicked");
                }
            }
        }
    }
}

async fn connection(socket: TcpStream, visible: Arc<impl Visible>) {
    let answering = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), service_fn(|request| answer(request, visible.clone())));
    match timeout(CONNECTION_MAX, answering).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an admin request was not answered"),
        Err(_) => tracing::debug!("an admin connection was too slow"),
    }
}

async fn answer(
    request: Request<Incoming>,
    visible: Arc<impl Visible>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here\n");
        refused.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return Ok(refused);
    }
    Ok(match request.uri().path() {
        "/metrics" => {
            let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            let format = Format::accepted(accept);
            text(StatusCode::OK, format.content_type(), visible.metrics().await.text(format))
        }
        "/healthz" => match visible.health().await {
            Ok(()) => plain(StatusCode::OK, "ok\n"),
            Err(reason) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics and /healthz\n"),
    })
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    text(status, "text/plain; charset=utf-8", body)
}

fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, content_type)
        .header(CACHE_CONTROL, "no-store")
        .body(Full::new(body.into()))
        .expect("a status and fixed headers make a response")
}
