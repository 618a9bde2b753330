//! A client without the library: what a change of layout needs of the servers, one request at a time.

use crate::common::WITHIN;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use steadfast_disk::{Granule, checksum};
use steadfast_net::{CallError, Event, Open, Options, Pool};
use steadfast_protocol::{
    BlockIndex, DeviceId, Epoch, IndexRanges, IntentId, RequestId, SegmentId, Version,
    message::{
        self, Change, Fault, Hello, MetaAnswer, MetaRequest, NodeAnswer, NodeFault, NodePush, NodeRequest,
        PAYLOAD_BYTES_MAX, Role, Slice, VERSION, WriteOpen,
    },
};

pub(crate) type Blocks = BTreeMap<BlockIndex, Vec<u8>>;

/// What blocks are stored under.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub(crate) segment: SegmentId,
    pub(crate) version: Version,
    pub(crate) epoch: Epoch,
    pub(crate) intent: IntentId,
}

pub(crate) struct Raw {
    pool: Pool,
    count: u64,
}

impl Raw {
    pub(crate) fn new() -> Self {
        let hello = Hello { version: VERSION, features: 0, role: Role::Client, cluster: None };
        Self { pool: Pool::new(hello, Options::default()), count: 0 }
    }

    async fn call(&self, address: &str, body: Vec<u8>, epoch: Epoch) -> Result<Vec<u8>, Fault> {
        let connection = self.pool.connection(address).await.unwrap();
        match connection.call(Open { body, epoch, ..Open::default() }).await {
            Ok((body, _)) => Ok(body),
            Err(CallError::Fault(fault)) => Err(fault),
            Err(error) => panic!("{address}: {error}"),
        }
    }

    /// A change at the metadata server.
    pub(crate) async fn change(&mut self, meta: &str, change: Change) -> Result<MetaAnswer, Fault> {
        self.count += 1;
        let id = RequestId { client: 0x7a77 << 64 | u128::from(std::process::id()), count: self.count };
        let body = message::encode(&MetaRequest::Change { id, change });
        self.call(meta, body, Epoch(0)).await.map(|body| message::decode(&body).unwrap())
    }

    /// What a device has of a segment, and whether it was sealed.
    pub(crate) async fn describe(
        &self,
        node: &str,
        device: DeviceId,
        segment: SegmentId,
    ) -> Option<(IndexRanges, bool)> {
        let body = message::encode(&NodeRequest::Describe { device, segment });
        match self.call(node, body, Epoch(0)).await.map(|body| message::decode(&body).unwrap()) {
            Ok(NodeAnswer::Described { blocks, sealed }) => Some((blocks, sealed)),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    }

    /// Changes bytes of a data chunk in place, wherever the object ends.
    pub(crate) async fn update(
        &self,
        node: &str,
        (device, segment, epoch): (DeviceId, SegmentId, Epoch),
        offset: u64,
        bytes: Vec<u8>,
    ) {
        let request = NodeRequest::Update { device, segment, offset, bytes: bytes.into() };
        let (body, until) = (message::encode(&request), Instant::now() + WITHIN);
        let answer = loop {
            // Again as the library asks again, and also where a server with parity is held up: this client stores nothing anew.
            let pause = match self.call(node, body.clone(), epoch).await {
                Ok(answer) => break answer,
                Err(Fault::Refused { retry_after_ms, .. }) => retry_after_ms,
                Err(Fault::Node(NodeFault::StaleEpoch { given, current }))
                    if given < epoch.0 && current == epoch.0 =>
                {
                    20
                }
                Err(Fault::Node(NodeFault::NotInPlace { .. })) => 200,
                Err(fault) => panic!("{node}: {fault}"),
            };
            assert!(Instant::now() < until, "{node} does not take an update of {device}");
            tokio::time::sleep(Duration::from_millis(pause.into())).await;
        };
        let answer: NodeAnswer = message::decode(&answer).unwrap();
        assert!(matches!(answer, NodeAnswer::Updated { .. }), "{answer:?}");
    }

    /// Has a device refuse changes in place of a segment under epochs before this one.
    pub(crate) async fn fence(&self, node: &str, (device, segment, epoch): (DeviceId, SegmentId, Epoch)) {
        let body = message::encode(&NodeRequest::Fence { device, segment });
        let answer: NodeAnswer = message::decode(&self.call(node, body, epoch).await.unwrap()).unwrap();
        assert_eq!(answer, NodeAnswer::Done);
    }

    /// Stores blocks on a device; they are durable then.
    pub(crate) async fn store(
        &self,
        node: &str,
        device: DeviceId,
        name: Name,
        granule_bytes: u32,
        blocks: &Blocks,
    ) {
        let Name { segment, version, epoch, intent } = name;
        let block_bytes = blocks.values().next().unwrap().len() as u32;
        let (expected_blocks, reserve_bytes) = (blocks.len() as u32, None);
        let open = WriteOpen {
            device,
            segment,
            version,
            intent,
            block_bytes,
            granule_bytes,
            expected_blocks,
            reserve_bytes,
        };
        let body = message::encode(&NodeRequest::Write(open));
        let connection = self.pool.connection(node).await.unwrap();
        let mut stream = connection.open(Open { body, epoch, ..Open::default() }).unwrap();
        let granule = Granule::new(granule_bytes).unwrap();
        let (mut credit, mut confirmed) = (0u64, IndexRanges::new());
        let mut slices = Vec::new();
        for (&index, block) in blocks {
            let sums = checksum::sums(block, granule, segment, version, index);
            let granules = (PAYLOAD_BYTES_MAX / granule_bytes) as usize;
            let payloads = block.chunks(PAYLOAD_BYTES_MAX as usize).zip(sums.chunks(granules));
            for (offset, (payload, sums)) in (0..).step_by(PAYLOAD_BYTES_MAX as usize).zip(payloads) {
                let slice = NodePush::Slice(Slice { index, offset, sums: sums.to_vec() });
                slices.push((message::encode(&slice), Bytes::copy_from_slice(payload)));
            }
        }
        let mut slices = slices.into_iter().peekable();
        let mut finished = false;
        loop {
            while let Some((body, payload)) = slices.next_if(|(_, payload)| payload.len() as u64 <= credit) {
                credit -= payload.len() as u64;
                stream.send(body, payload).await.unwrap();
            }
            if slices.peek().is_none() && !finished {
                finished = true;
                stream.send(message::encode(&NodePush::Finish), Bytes::new()).await.unwrap();
            }
            match stream.recv().await.unwrap() {
                Event::Credit(bytes) => credit += u64::from(bytes),
                Event::Data { .. } => {}
                Event::End(body) => {
                    let NodeAnswer::Written { blocks } = message::decode(&body).unwrap() else { panic!() };
                    confirmed.insert_all(&blocks);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(confirmed, blocks.keys().copied().collect());
    }
}
