//! A part of a segment whose chunks changed while it was read, or which too few blocks give: at one state of all that is read.
//! [`Guarded`] says how often, and how.

use super::SegmentReader;
use crate::{
    GetError,
    chunks::{Parts, originals},
    reserve::Reading,
};
use bytes::BytesMut;
use std::{collections::BTreeSet, time::Instant};
use steadfast_protocol::{
    DeviceId, Time,
    chunks::{Guarded, spared},
    layout::{ParityGeometry, SegmentLayout},
};

impl SegmentReader<'_> {
    /// The originals that hold the part, and how many bytes were received for them.
    pub(super) async fn at_one_state(&mut self) -> Result<(Vec<BytesMut>, u64), GetError> {
        let Reading { excluded: given_up, as_it_is, ended, least, reserved, .. } = self.reading;
        let parity = parity_of(self.layout);
        let without = spared(parity.len() as u32, given_up.iter().copied(), self.core.late());
        let (patience, priority) = (self.client.options.patience, reserved.priority());
        let read = |excluded, level| {
            let parts = Parts::whole(self.layout, patience, priority);
            let parts = Parts { as_it_is: *as_it_is, level, least: least.clone(), ..parts };
            originals(self.client, self.layout, excluded, self.wanted.clone(), parts)
        };
        let begun = Instant::now();
        let now = || Time(0) + begun.elapsed();
        let mut guarded = Guarded::new(now(), patience, without != *given_up, *ended);
        loop {
            let excluded = if guarded.spares() { &without } else { given_up };
            let error = match read(excluded, guarded.is_level()).await {
                Err(GetError::Read(error)) => error,
                other => return other,
            };
            tracing::debug!(segment = %self.layout.segment, ?guarded, %error, "not at one state");
            let Some(pause) = guarded.failed(now(), &error, &parity) else { return Err(error.into()) };
            tokio::time::sleep(pause).await;
        }
    }
}

/// The devices of a segment's parity chunks, where it has chunks that change in place.
fn parity_of(layout: &SegmentLayout) -> BTreeSet<DeviceId> {
    let shape = ParityGeometry::of_layout(layout);
    let holders = shape.and_then(|shape| Some((shape.data as usize, shape.updatable(layout)?)));
    holders.map(|(data, holders)| holders.into_iter().skip(data).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chunks::zeros,
        reserve::tests::{client, device_of, layout, serving_opened},
    };
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };
    use steadfast_protocol::{
        Epoch,
        message::{self, ChunkVersions, Fault, NodeAnswer, NodeFault, NodeRequest, ReadState},
        plan::Quality,
    };

    /// The epochs under which parity was asked for versions and rows, where its node refuses so many of those under the layout's, and how
    /// long the read took. The first data chunk and the other parity chunk are lost; changes were ended for the read, or not.
    async fn read(
        refuses: usize,
        refuses_rows: bool,
        ended: bool,
        patience: Duration,
    ) -> (Vec<Epoch>, Duration) {
        let (begun, [lost, _, parity, _]) = (Instant::now(), [0, 1, 2, 3].map(device_of));
        let epochs = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&epochs);
        let refused = Mutex::new(0);
        let address = serving_opened(move |request, opened, stream| {
            let lacks = |is_refused: bool| {
                let mut refused = refused.lock().unwrap();
                let lacks = is_refused && opened.epoch != Epoch(0) && *refused < refuses;
                *refused += usize::from(lacks);
                lacks
            };
            let lacks_changes = || {
                let (device, segment) = (parity, layout().segment);
                Fault::Node(NodeFault::LacksChanges { device, segment })
            };
            match &request {
                NodeRequest::ChunkVersions { device, .. } if *device > lost && *device <= parity => {
                    if *device == parity && lacks(!refuses_rows) {
                        return stream.fail(&lacks_changes());
                    }
                    let held = if *device == parity { vec![(0, 3), (1, 0)] } else { Vec::new() };
                    let answer = NodeAnswer::ChunkVersions(ChunkVersions { version: 0, held });
                    let _ = stream.end(message::encode(&answer));
                }
                NodeRequest::ReadRows(rows) if rows.device > lost && rows.device <= parity => {
                    if rows.device == parity {
                        told.lock().unwrap().push(opened.epoch);
                        if lacks(refuses_rows) {
                            return stream.fail(&lacks_changes());
                        }
                    }
                    zeros::serve(&request, ReadState::default(), stream);
                }
                _ => stream.fail(&Fault::Node(NodeFault::UnknownDevice(lost))),
            }
        })
        .await;
        let mut client = client(&address, Vec::new());
        client.options.patience = patience;
        let (layout, policy) = (layout(), "parity".parse().unwrap());
        let reading = Reading { ended, ..client.reading(Quality::default()) };
        let mut reader =
            SegmentReader::new(&client, &layout, 0..layout.length, &policy, None, &reading).unwrap();
        let (blocks, _) = reader.at_one_state().await.unwrap();
        assert!(blocks.iter().flatten().all(|byte| *byte == 0));
        (epochs.lock().unwrap().clone(), begun.elapsed())
    }

    /// The data chunk that it would stand in for may only be late.
    #[tokio::test]
    async fn parity_that_lacks_changes_is_waited_for_and_taken_as_it_is_when_that_was_in_vain() {
        let (by_layout, patience) = (layout().epoch, Duration::from_secs(10));
        let (epochs, _) = read(2, true, false, patience).await;
        assert_eq!(epochs, [by_layout; 6], "refused twice, and one of each row");
        let (epochs, _) = read(2, false, false, patience).await;
        assert_eq!(epochs, [by_layout; 4]);
        // Who has ended its changes knows what it lacks.
        let (epochs, _) = read(usize::MAX, true, true, patience).await;
        assert_eq!(epochs, [Epoch(0); 4]);
        let patience = Duration::from_millis(300);
        for refuses_rows in [true, false] {
            let (epochs, took) = read(usize::MAX, refuses_rows, false, patience).await;
            let (waiting, taken) = epochs.split_at(epochs.len() - 4);
            assert!(waiting.iter().all(|epoch| *epoch == by_layout), "{epochs:?}");
            assert_eq!((taken, waiting.is_empty()), (&[Epoch(0); 4][..], !refuses_rows));
            assert!(took >= patience, "{took:?}");
        }
    }
}
