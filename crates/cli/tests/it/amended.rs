//! A committed object changed without being rewritten: new contents of the coded blocks that an original touches, blocks
//! that moved to another device. Made by hand, read by the library and the program, tidied by the servers' sweeps.

use crate::{
    common::{Bed, WITHIN, block_on, bytes, eventually, seed, shape},
    raw::{Blocks, Name, Raw},
};
use std::{collections::BTreeMap, fs};
use steadfast_client::Client;
use steadfast_lab::cluster::Shape;
use steadfast_protocol::{
    BlockIndex, DeviceId, Version,
    layout::{Holder, Piece, SegmentLayout},
    message::{Change, Fault, MetaAnswer, MetaFault, PutBegun},
    policy::Pledge,
};

/// The blocks of a segment's bytes.
fn encode(layout: &SegmentLayout, data: &[u8], indices: &[BlockIndex]) -> Blocks {
    let block_bytes = layout.block_bytes as usize;
    let mut padded = data.to_vec();
    padded.resize(block_bytes * layout.code.originals as usize, 0);
    let originals: Vec<&[u8]> = padded.chunks(block_bytes).collect();
    let mut blocks: Vec<Vec<u8>> = indices.iter().map(|_| vec![0; block_bytes]).collect();
    let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
    layout.code.code().unwrap().encoder().encode(indices, &originals, &mut out).unwrap();
    indices.iter().copied().zip(blocks).collect()
}

/// Moves a block into the piece that the amendment stores on a device.
fn place(layout: &mut SegmentLayout, begun: &PutBegun, device: DeviceId, index: BlockIndex) {
    for holder in &mut layout.holders {
        for piece in &mut holder.pieces {
            piece.blocks.remove(index);
        }
        holder.pieces.retain(|piece| !piece.blocks.is_empty());
    }
    layout.holders.retain(|holder| !holder.pieces.is_empty());
    if layout.holder(device).is_none() {
        layout.holders.push(Holder { device, pieces: Vec::new() });
    }
    let holder = layout.holders.iter_mut().find(|holder| holder.device == device).unwrap();
    let (segment, version) = (begun.segments[0], begun.version);
    match holder.pieces.iter_mut().find(|piece| piece.segment == segment) {
        Some(piece) => assert!(piece.blocks.insert(index)),
        None => holder.pieces.push(Piece { segment, version, blocks: [index].into_iter().collect() }),
    }
}

/// Where each device is served.
pub(crate) async fn addresses(client: &Client) -> BTreeMap<DeviceId, String> {
    let nodes = client.registry().await.unwrap().nodes;
    let served = |node: &steadfast_protocol::message::NodeState| {
        let address = node.record.address.clone();
        node.record.devices.iter().map(move |&(device, _)| (device, address.clone())).collect::<Vec<_>>()
    };
    nodes.iter().flat_map(served).collect()
}

async fn begin(raw: &mut Raw, bed: &Bed, base: Version, rewrites: bool) -> Result<PutBegun, Fault> {
    let (bucket, key) = ("data".into(), "object".into());
    let change = Change::BeginAmend { bucket, key, base, segments: 1, rewrites };
    match raw.change(bed.cluster.address(), change).await? {
        MetaAnswer::Begun(begun) => Ok(begun),
        other => panic!("{other:?}"),
    }
}

/// Stores the new pieces of `layout` and commits it in place of the object's.
async fn amend(
    raw: &mut Raw,
    bed: &Bed,
    client: &Client,
    begun: &PutBegun,
    layout: &SegmentLayout,
    data: &[u8],
) {
    let addresses = addresses(client).await;
    let name =
        Name { segment: begun.segments[0], version: begun.version, epoch: begun.epoch, intent: begun.intent };
    for (device, piece) in layout.pieces().filter(|(_, piece)| piece.segment == name.segment) {
        let blocks = encode(layout, data, &piece.blocks.iter().collect::<Vec<_>>());
        raw.store(&addresses[&device], device, name, layout.granule_bytes, &blocks).await;
    }
    let commit = Change::Commit {
        intent: begun.intent,
        size: layout.length,
        segments: vec![SegmentLayout { epoch: begun.epoch, ..layout.clone() }],
        pledge: Pledge::default(),
        base: None,
    };
    // What is freed is left to the sweeps.
    let answer = raw.change(bed.cluster.address(), commit).await;
    assert!(matches!(answer, Ok(MetaAnswer::Committed { .. })), "{answer:?}");
}

#[test]
fn an_object_is_changed_and_moved_without_being_rewritten() {
    let seed = seed();
    let shape = Shape { lease_s: 60, ..shape(6, 1) };
    let bed = Bed::with_bucket(&shape, "rateless:redundancy=0.5,tolerate=1");
    block_on(async {
        let client = bed.client().await;
        let empty = bed.used_bytes(&client).await;
        let file = bed.file("original", 5 << 20, seed);
        let mut data = fs::read(&file).unwrap();
        bed.put(&file, "object");
        let mut raw = Raw::new();

        // New contents of a range: the coded blocks of two originals, each where it was.
        let found = client.stat("data", "object").await.unwrap();
        let base = found.segments[0].clone();
        data[100_000..150_000].copy_from_slice(&bytes(50_000, seed + 1));
        let last = base.holders.iter().map(|holder| holder.blocks().ranges().last().unwrap().end).max();
        let code = base.code.code().unwrap();
        let touched = [1, 2].into_iter().flat_map(|original| code.touched_by(original, 0..last.unwrap()));
        let mut touched: Vec<BlockIndex> = touched.filter(|&index| base.holder_of(index).is_some()).collect();
        touched.sort_unstable();
        touched.dedup();
        // How many coded blocks there are is a matter of the put's devices.
        let originals = touched.iter().filter(|&&index| index < base.code.originals);
        assert!(touched.len() > 2 && originals.eq(&[1, 2]), "{touched:?}");
        let begun = begin(&mut raw, &bed, found.object.version, true).await.unwrap();
        let mut changed = base.clone();
        for &index in &touched {
            place(&mut changed, &begun, base.holder_of(index).unwrap(), index);
        }
        amend(&mut raw, &bed, &client, &begun, &changed, &data).await;
        bed.get_equals("object", &data);
        let said = bed.ok(&["stat", "data/object"]);
        assert!(said.contains(&format!("piece {}", begun.segments[0])), "{said}");
        let report = client.get("data", "object", None, std::io::sink()).await.unwrap();
        assert_eq!((report.version, report.corrupt_blocks, report.devices_failed), (begun.version, 0, 0));
        // Whoever began before has to begin again.
        let late = begin(&mut raw, &bed, found.object.version, true).await;
        let conflict = |fault: &Fault| matches!(fault, Fault::Meta(MetaFault::Conflict { .. }));
        assert!(late.as_ref().is_err_and(conflict), "{late:?}");

        // One device gives its blocks to another, which holds three pieces by then.
        let begun = begin(&mut raw, &bed, begun.version, false).await.unwrap();
        let (leaving, taking) = (changed.holders[0].clone(), changed.holders[1].device);
        let mut moved = changed.clone();
        for index in leaving.blocks().iter() {
            place(&mut moved, &begun, taking, index);
        }
        amend(&mut raw, &bed, &client, &begun, &moved, &data).await;
        bed.get_equals("object", &data);
        let found = client.stat("data", "object").await.unwrap();
        assert!(found.segments[0].holder(leaving.device).is_none());
        assert!(found.object.contents < found.object.version, "the second amendment kept the bytes");

        // The sweeps trim and free what the layout lists no more, and nothing else.
        let addresses = addresses(&client).await;
        let layout = &found.segments[0];
        for holder in &base.holders {
            let (device, node) = (holder.device, &addresses[&holder.device]);
            for segment in [base.segment, changed.pieces().last().unwrap().1.segment, begun.segments[0]] {
                let listed = layout.holder(device).and_then(|holder| holder.piece(segment));
                let wanted = listed.map(|piece| (piece.blocks.clone(), true));
                eventually("the sweep has been there", WITHIN, async || {
                    raw.describe(node, device, segment).await == wanted
                })
                .await;
            }
        }
        bed.get_equals("object", &data);
        bed.ok(&["rm", "data/object"]);
        eventually("all is free again", WITHIN, async || bed.used_bytes(&client).await <= empty).await;
    });
}
