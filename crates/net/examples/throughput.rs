//! What the framed protocol costs on loopback: two threads, each with its own runtime, 256 KiB payloads.
//!
//! `cargo run --release -p steadfast-net --example throughput [GIGABYTES]` prints, for each side, gigabytes per
//! second of the thread's processor time, and gigabytes per second of wall-clock time; first for plain sockets
//! and one buffer (the limit), then for the framed protocol.

use bytes::Bytes;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Instant,
};
use steadfast_net::{Event, Open, Options, Pacing, Server, connect};
use steadfast_protocol::message::{Hello, PAYLOAD_BYTES_MAX, Role, VERSION};
use tokio::sync::oneshot;

/// Credit in flight: 16 payloads.
const WINDOW_BYTES: u32 = 16 * PAYLOAD_BYTES_MAX;

fn main() {
    let gigabytes: f64 =
        std::env::args().nth(1).map_or(4.0, |text| text.parse().expect("a number of gigabytes"));
    let total = ((gigabytes * 1e9) as u64).next_multiple_of(u64::from(PAYLOAD_BYTES_MAX));
    let (tell, told) = std::sync::mpsc::channel();
    let sender = thread::spawn(move || timed(|| send_plain(total, &tell)));
    let receiver = thread::spawn(move || timed(|| receive_plain(total, &told)));
    report("plain sockets", total, sender, receiver);

    let (tell_address, address) = oneshot::channel();
    let sender = thread::spawn(move || in_runtime(send(total, tell_address)));
    let receiver = thread::spawn(move || in_runtime(receive(total, address)));
    report("framed protocol", total, sender, receiver);
}

fn report(what: &str, total: u64, sender: JoinHandle<(f64, ())>, receiver: JoinHandle<(f64, f64)>) {
    let (sending_s, ()) = sender.join().expect("the sender runs");
    let (receiving_s, wall_s) = receiver.join().expect("the receiver runs");
    let [sending, receiving, wall] =
        [sending_s, receiving_s, wall_s].map(|seconds| total as f64 / 1e9 / seconds);
    println!("{what}: sending {sending:.2} GB/CPU-s, receiving {receiving:.2} GB/CPU-s, {wall:.2} GB/s");
}

fn in_runtime<T>(work: impl Future<Output = T>) -> (f64, T) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    timed(|| runtime.block_on(work))
}

/// Gives the processor seconds of this thread so far beside the result.
fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let result = work();
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let used_ns =
        schedstat.split(' ').next().and_then(|field| field.parse::<f64>().ok()).expect("nanoseconds");
    (used_ns / 1e9, result)
}

fn send_plain(total: u64, tell_address: &mpsc::Sender<SocketAddr>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    Pacing::off(&listener);
    tell_address.send(listener.local_addr().expect("bound")).expect("the receiver waits");
    let (mut socket, _) = listener.accept().expect("the receiver connects");
    let payload = vec![7_u8; PAYLOAD_BYTES_MAX as usize];
    for _ in 0..total / u64::from(PAYLOAD_BYTES_MAX) {
        socket.write_all(&payload).expect("connected");
    }
}

fn receive_plain(total: u64, address: &mpsc::Receiver<SocketAddr>) -> f64 {
    let mut socket = TcpStream::connect(address.recv().expect("the sender tells")).expect("it listens");
    let began = Instant::now();
    let mut payload = vec![0_u8; PAYLOAD_BYTES_MAX as usize];
    for _ in 0..total / u64::from(PAYLOAD_BYTES_MAX) {
        socket.read_exact(&mut payload).expect("connected");
    }
    began.elapsed().as_secs_f64()
}

fn hello(role: Role) -> Hello {
    Hello { version: VERSION, features: 0, role, cluster: None }
}

async fn send(total: u64, tell_address: oneshot::Sender<String>) {
    let server = Server::bind("127.0.0.1:0").await.expect("a free port");
    tell_address.send(server.local_addr().expect("bound").to_string()).expect("the receiver waits");
    let (tell_done, done) = oneshot::channel();
    let tell_done = std::sync::Mutex::new(Some(tell_done));
    let serving = server.serve(hello(Role::Meta), Options::default(), move |mut connected| {
        let tell_done = tell_done.lock().expect("not poisoned").take();
        async move {
            let (opened, mut stream) = connected.incoming.next().await.expect("one request");
            let payload = Bytes::from(vec![7_u8; PAYLOAD_BYTES_MAX as usize]);
            let mut credit = u64::from(opened.credit);
            let mut left = total;
            while left > 0 {
                if credit < u64::from(PAYLOAD_BYTES_MAX) {
                    match stream.recv().await {
                        Some(Event::Credit(more)) => credit += u64::from(more),
                        other => panic!("{other:?}"),
                    }
                    continue;
                }
                stream.send(vec![0; 100], payload.clone()).await.expect("connected");
                credit -= u64::from(PAYLOAD_BYTES_MAX);
                left -= u64::from(PAYLOAD_BYTES_MAX);
            }
            stream.end(Vec::new()).expect("connected");
            drop(stream);
            while connected.incoming.next().await.is_some() {}
            tell_done.expect("one connection").send(()).expect("the server waits");
        }
    });
    tokio::select! {
        () = serving => {}
        _ = done => {}
    }
}

async fn receive(total: u64, address: oneshot::Receiver<String>) -> f64 {
    let address = address.await.expect("the sender tells");
    let connected = connect(&address, hello(Role::Client), &Options::default()).await.expect("it listens");
    let began = Instant::now();
    let open = Open { credit: WINDOW_BYTES, ..Open::default() };
    let mut stream = connected.connection.open(open).expect("connected");
    let (mut received, mut ungranted) = (0, 0);
    loop {
        match stream.recv().await {
            Some(Event::Data { payload, .. }) => {
                received += payload.len() as u64;
                ungranted += u32::try_from(payload.len()).expect("a slice");
                if ungranted >= WINDOW_BYTES / 4 {
                    stream.grant(std::mem::take(&mut ungranted));
                }
            }
            Some(Event::End(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, total);
    began.elapsed().as_secs_f64()
}
