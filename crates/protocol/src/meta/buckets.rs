//! Buckets, and whether the cluster can meet a policy at all.
//!
//! Left out: the finer choice of devices (`plan`), which knows speeds and free space; here a policy is only refused
//! where no choice could meet it.

use super::{
    Terms,
    counters::Counters,
    intents, keys, names,
    registry::{self, Liveness},
    standing,
    view::{Txn, View, ViewError},
};
use crate::{
    DeviceId, Time,
    message::{BucketRecord, MetaAnswer, MetaFault},
    policy::{Domain, Parity, ParityCode, ParityUpdate, Policy, Rateless, Replicated, Stripe},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The most buckets of a cluster: their list fits into one answer.
pub const BUCKETS_MAX: u32 = 10_000;

/// Makes a bucket. One whose record is damaged is made again over it, with what it holds: nobody can read, list or remove anything of it
/// else.
pub(super) fn create(
    txn: &mut Txn<'_>,
    now: Time,
    liveness: &Liveness,
    bucket: &str,
    policy: Policy,
) -> Result<MetaAnswer, MetaFault> {
    names::check_bucket(bucket)?;
    check_policy(&policy)?;
    let key = keys::bucket(bucket);
    match txn.get(&key)? {
        Some(value) if keys::is_whole(&key, &value) => {
            return Err(MetaFault::BucketExists(bucket.to_owned()));
        }
        Some(damaged) => {
            txn.left_out(&key, &ViewError::Damaged { what: "bucket", length: damaged.len() });
        }
        None => {
            let mut counters = Counters::read(txn)?;
            if counters.buckets >= BUCKETS_MAX {
                return Err(MetaFault::Invalid(format!(
                    "the cluster has {BUCKETS_MAX} buckets, the most it can have"
                )));
            }
            counters.buckets += 1;
            counters.write(txn);
        }
    }
    check_feasible(txn, now, liveness, &policy)?;
    keys::write(txn, key, &BucketRecord { name: bucket.to_owned(), policy, created: now });
    Ok(MetaAnswer::Done)
}

/// Removes a bucket. What a damaged record stands for is an object too, which has to be removed: what it lists is found then. A put is
/// planned by the policy that it was begun under, and would commit into a bucket made anew of the same name.
pub(super) fn remove(
    txn: &mut Txn<'_>,
    now: Time,
    terms: &Terms,
    bucket: &str,
) -> Result<MetaAnswer, MetaFault> {
    read(txn, bucket)?;
    let (from, to) = keys::objects(bucket, "", None);
    if !txn.scan(&from, &to, 1)?.is_empty() {
        return Err(MetaFault::BucketNotEmpty(bucket.to_owned()));
    }
    if intents::any_into(txn, now, terms, bucket)? {
        return Err(MetaFault::BucketInUse(bucket.to_owned()));
    }
    let mut counters = Counters::read(txn)?;
    counters.buckets = counters.buckets.saturating_sub(1);
    counters.write(txn);
    txn.delete(keys::bucket(bucket));
    Ok(MetaAnswer::Done)
}

/// The record of a bucket.
pub(super) fn read(view: &dyn View, bucket: &str) -> Result<BucketRecord, MetaFault> {
    names::check_bucket(bucket)?;
    let key = keys::bucket(bucket);
    let record = view.get(&key)?.map(|value| parse(&key, &value)).transpose()?;
    record.ok_or_else(|| MetaFault::NoBucket(bucket.to_owned()))
}

/// The policy of a bucket that has to be there.
pub(super) fn policy(view: &dyn View, bucket: &str) -> Result<Policy, ViewError> {
    let key = keys::bucket(bucket);
    let value = view.get(&key)?.ok_or(ViewError::Damaged { what: "missing bucket", length: 0 })?;
    Ok(parse(&key, &value)?.policy)
}

/// A bucket's record as it is stored now, or as it was before parity policies said how many chunks are enough.
fn parse(key: &[u8], value: &[u8]) -> Result<BucketRecord, ViewError> {
    // An earlier one has the time, whose first byte is none of an option, where the other goes on: neither is taken for the other.
    keys::parse("bucket", key, value).or_else(|error| {
        let Ok(Earlier { name, policy: EarlierPolicy::Parity(policy), created }) =
            keys::parse("bucket", key, value)
        else {
            return Err(error);
        };
        let EarlierParity { code, segment_bytes, update, reserve_bytes, domain } = policy;
        let policy = Parity { code, segment_bytes, update, reserve_bytes, domain, least_chunks: None };
        Ok(BucketRecord { name, policy: Policy::Parity(policy), created })
    })
}

/// What earlier builds wrote.
#[derive(Serialize, Deserialize)]
struct Earlier {
    name: String,
    policy: EarlierPolicy,
    created: Time,
}

#[derive(Serialize, Deserialize)]
enum EarlierPolicy {
    Rateless(Rateless),
    Stripe(Stripe),
    Replicated(Replicated),
    Parity(EarlierParity),
}

#[derive(Serialize, Deserialize)]
struct EarlierParity {
    code: ParityCode,
    segment_bytes: u64,
    update: ParityUpdate,
    reserve_bytes: Option<u64>,
    domain: Domain,
}

/// All buckets by name.
pub(super) fn all(view: &dyn View) -> Result<MetaAnswer, MetaFault> {
    let (from, to) = keys::buckets();
    let entries = view.scan(&from, &to, BUCKETS_MAX as usize)?;
    let whole = |(key, value): &(Vec<u8>, Vec<u8>)| {
        parse(key, value).map_err(|damage| view.left_out(key, &damage)).ok()
    };
    Ok(MetaAnswer::Buckets(entries.iter().filter_map(whole).collect()))
}

/// A policy off the wire is within the bounds of its text form: only then does its text parse back to it.
fn check_policy(policy: &Policy) -> Result<(), MetaFault> {
    match policy.to_string().parse::<Policy>() {
        Ok(parsed) if parsed == *policy => Ok(()),
        Ok(_) => {
            Err(MetaFault::Invalid(format!("policy `{policy}` has values that its text cannot express")))
        }
        Err(error) => Err(MetaFault::Invalid(error.to_string())),
    }
}

/// f + 1 failure domains for the copies or blocks that must survive f losses, and the devices asked for.
fn check_feasible(view: &dyn View, now: Time, liveness: &Liveness, policy: &Policy) -> Result<(), MetaFault> {
    let leaving: BTreeSet<DeviceId> =
        standing::draining(view)?.iter().map(|standing| standing.device).collect();
    let (mut devices, mut nodes, mut sites) = (0u32, 0u32, BTreeSet::new());
    for record in registry::nodes(view)?.into_iter().filter(|record| liveness.is_alive(record.node, now)) {
        let takes =
            |device: &DeviceId| !leaving.contains(device) && !liveness.has_failed(record.node, *device);
        let usable = record.devices.iter().filter(|(device, _)| takes(device)).count();
        if usable > 0 {
            devices += u32::try_from(usable).expect("registration bounds devices");
            nodes += 1;
            sites.insert(record.site);
        }
    }
    let (domain, available) = match policy.domain() {
        Domain::Device => ("devices", devices),
        Domain::Node => ("nodes", nodes),
        Domain::Site => ("sites", u32::try_from(sites.len()).expect("registration bounds nodes")),
    };
    for (domain, needed, available) in
        [(domain, policy.domains(), available), ("devices", policy.devices().unwrap_or(1), devices)]
    {
        if available < needed {
            return Err(MetaFault::PolicyUnmet { domain: domain.to_owned(), needed, available });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::MemoryStore;

    #[test]
    fn a_record_from_before_policies_said_how_many_chunks_are_enough_is_read() {
        let Policy::Parity(parity) = "parity:segment=1MiB,reserve=64KiB,domain=site".parse().unwrap() else {
            panic!()
        };
        let Parity { code, segment_bytes, update, reserve_bytes, domain, .. } = parity;
        let before = EarlierParity { code, segment_bytes, update, reserve_bytes, domain };
        let mut store = MemoryStore::new();
        let mut txn = Txn::new(&store);
        // From the clock's first second to years from now.
        for (number, created) in [1_000_000_000, 1_790_000_000_000_000_000, u64::MAX].into_iter().enumerate()
        {
            let name = format!("bucket-{number}");
            let created = Time(created);
            let policy = EarlierPolicy::Parity(EarlierParity { ..before });
            keys::write(&mut txn, keys::bucket(&name), &Earlier { name, policy, created });
        }
        let name = "with-five".to_owned();
        let policy = "parity:least=5".parse().unwrap();
        let now = BucketRecord { name: name.clone(), policy, created: Time(7) };
        keys::write(&mut txn, keys::bucket(&name), &now);
        let writes = txn.into_writes();
        store.apply(writes);
        for number in 0..3 {
            let name = format!("bucket-{number}");
            let record = read(&store, &name).expect("a whole record");
            assert_eq!((record.name, record.policy), (name, Policy::Parity(parity)));
        }
        assert_eq!(read(&store, &name), Ok(now));
        let Ok(MetaAnswer::Buckets(all)) = all(&store) else { panic!() };
        assert_eq!(all.len(), 4);
    }
}
