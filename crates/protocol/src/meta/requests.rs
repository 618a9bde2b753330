//! Each mutating request takes effect once. Its id is stored with its answer in the transaction that changed
//! something, so a client whose answer was lost asks again under the same id.
//!
//! ```text
//!   unknown ──change──▶ answered ──answers_kept later──▶ unknown
//!                          │ ▲
//!                          └─┘ same id, same request: same answer; same id, other request: refused
//! ```
//!
//! Invariants: the record and its entry by age come and go together. Left out: ids are not tracked beyond
//! [`Terms::answers_kept`](super::Terms::answers_kept); a copy of a request later than that would be taken for new.

use super::{
    Terms, keys,
    view::{Txn, View, ViewError},
};
use crate::{
    RequestId, Time,
    message::{Change, MetaAnswer, MetaFault, encode},
};
use crc_fast::{CrcAlgorithm, checksum};
use serde::{Deserialize, Serialize};

/// The most answers forgotten in one step.
const EXPIRE_MAX: usize = 1024;

/// Tells requests apart: length and CRC-64 of the encoded change. Against mistakes, not against malice: a client
/// draws its own ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Digest {
    length: u64,
    crc: u64,
}

impl Digest {
    pub(super) fn of(change: &Change) -> Self {
        let bytes = encode(change);
        Self { length: bytes.len() as u64, crc: checksum(CrcAlgorithm::Crc64Nvme, &bytes) }
    }
}

#[derive(Serialize, Deserialize)]
struct Answered {
    digest: Digest,
    answer: Result<MetaAnswer, MetaFault>,
}

/// The answer given before under `id`, if one was.
pub(super) fn answered(
    view: &dyn View,
    id: RequestId,
    digest: Digest,
) -> Result<Option<Result<MetaAnswer, MetaFault>>, MetaFault> {
    match keys::read::<Answered>(view, "answered request", &keys::request(id))? {
        None => Ok(None),
        Some(record) if record.digest == digest => Ok(Some(record.answer)),
        Some(_) => Err(MetaFault::Invalid(format!(
            "request {} of client {:032x} was another one: each change needs an id of its own",
            id.count, id.client
        ))),
    }
}

/// Stores the answer given under `id`.
pub(super) fn remember(
    txn: &mut Txn<'_>,
    now: Time,
    id: RequestId,
    digest: Digest,
    answer: &Result<MetaAnswer, MetaFault>,
) {
    keys::write(txn, keys::request(id), &Answered { digest, answer: answer.clone() });
    txn.put(keys::request_age(now, id), Vec::new());
}

/// Forgets answers older than they are kept: how many, and whether more are due.
pub(super) fn expire(txn: &mut Txn<'_>, now: Time, terms: &Terms) -> Result<(usize, bool), ViewError> {
    let kept = u64::try_from(terms.answers_kept.as_nanos()).unwrap_or(u64::MAX);
    let Some(until) = now.0.checked_sub(kept) else { return Ok((0, false)) };
    // Whose answer was lost when the server went asks again, whatever the clock says by now.
    if now < terms.started + terms.answers_kept {
        return Ok((0, false));
    }
    let (from, to) = keys::old_requests(Time(until));
    let mut due = txn.scan(&from, &to, EXPIRE_MAX)?;
    // A clock that was ahead has answered them, before the server started.
    let (from, to) = keys::requests_beyond(now);
    due.extend(txn.scan(&from, &to, EXPIRE_MAX - due.len())?);
    for (age_key, _) in &due {
        match keys::old_request(age_key) {
            Ok(id) => txn.delete(keys::request(id)),
            Err(error) => txn.left_out(age_key, &error),
        }
        txn.delete(age_key.clone());
    }
    Ok((due.len(), due.len() == EXPIRE_MAX))
}
