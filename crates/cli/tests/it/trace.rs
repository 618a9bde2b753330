//! What real servers write down of their messages: the simulator's schema, and every byte that moved.

use crate::common::{Bed, WITHIN, block_on, bytes, eventually, seed, shape};
use std::{fs, net::SocketAddr};
use steadfast_lab::cluster::Shape;
use steadfast_protocol::{
    message::{Change, MetaAnswer, MetaRequest, NodeAnswer, NodeRequest},
    trace::{Message, Record},
};

pub(crate) fn records(bed: &Bed, server: &str) -> Vec<Record<SocketAddr>> {
    let file = bed.cluster.dir().join("logs").join(format!("{server}.trace.jsonl"));
    let text = fs::read_to_string(&file).unwrap();
    // The last line may still be on its way.
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    text[..whole].lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_servers_trace_has_all_that_was_said_in_the_simulators_schema() {
    let bed = Bed::with_bucket(&Shape { trace: true, ..shape(4, 1) }, "rateless:redundancy=0.5,tolerate=1");
    let original = bytes(4 << 20, seed());
    let file = bed.file("original", original.len(), seed());
    bed.put(&file, "object");
    bed.get_equals("object", &original);

    // A server writes them down behind its answers.
    let original = original.len() as u64;
    block_on(eventually("everything is written down", WITHIN, async || {
        let meta = records(&bed, "meta");
        let asked = |wanted: fn(&MetaRequest) -> bool| {
            let asks = |record: &Record<_>| matches!(&record.message, Message::Ask(request) if wanted(request.as_ref()));
            meta.iter().any(asks)
        };
        let committed = |record: &Record<_>| match &record.message {
            Message::Answer(answer) => matches!(**answer, Ok(MetaAnswer::Committed { .. })),
            _ => false,
        };
        let moved = moved(&bed);
        println!("{moved:?}");
        asked(|request| matches!(request, MetaRequest::Change { change: Change::Commit { .. }, .. }))
            && asked(|request| matches!(request, MetaRequest::Heartbeat(_)))
            && meta.iter().any(committed)
            && moved.stored >= 3
            && moved.read >= 2
            && moved.pushed >= original * 3 / 2
            && moved.sent >= original
            && moved.done > 0
    }));
}

/// What the storage servers' traces have so far: writes and reads that were opened, payload bytes pushed and sent, and those that
/// the ends of reads speak of (of some reads none, which were cancelled).
#[derive(Debug, Default)]
struct Moved {
    stored: u32,
    read: u32,
    pushed: u64,
    sent: u64,
    done: u64,
}

fn moved(bed: &Bed) -> Moved {
    let mut moved = Moved::default();
    for node in 0..4 {
        let records = records(bed, &format!("node-{node:02}"));
        assert!(records.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert!(records.iter().all(|record| !record.damaged), "{node}");
        let address: SocketAddr = bed.cluster.node_address(node).parse().unwrap();
        assert!(records.iter().all(|record| (record.from == address) != (record.to == address)));
        for Record { from, message, .. } in &records {
            let served = *from == address;
            match message {
                Message::Open { request, .. } => match request.as_ref() {
                    NodeRequest::Write(write) => moved.stored += u32::from(write.block_bytes > 0),
                    NodeRequest::Read { .. } => moved.read += 1,
                    _ => {}
                },
                Message::Push(_, payload) if !served => moved.pushed += u64::from(payload.bytes),
                Message::Event(_, payload) if served => moved.sent += u64::from(payload.bytes),
                Message::End(NodeAnswer::Read(done)) if served => moved.done += done.sent_bytes,
                _ => {}
            }
            assert!(
                message.payload_bytes() == 0
                    || !matches!(message, Message::Event(_, p) if p.fingerprint == 0)
            );
        }
    }
    moved
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_at_the_start() {
    let bed = Bed::start(&shape(1, 1));
    let arguments = ["meta", "--dir", "nowhere", "--listen", "127.0.0.1:0", "--trace", "/nowhere/trace"];
    let said = bed.fails(1, &arguments);
    assert!(said.contains("--trace /nowhere/trace"), "{said}");
}
