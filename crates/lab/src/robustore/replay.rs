//! One access of an experiment again: the run that a seed names, with its hash, its counts and, if wanted, every message.

use super::{
    access::{self, Watch},
    parameters::{self, Access},
    scheme::Scheme,
};
use crate::report::NotOffered;
use anyhow::{Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use steadfast_sim::{Damage, Record};

/// Which access.
#[derive(Clone, Debug)]
pub struct Request {
    /// The experiment.
    pub experiment: String,
    /// Its point, as its cases name it.
    pub point: String,
    /// The scheme.
    pub scheme: Scheme,
    /// The seed.
    pub seed: u64,
    /// The access's number.
    pub number: u32,
    /// Whether to keep its messages, and which of them to damage.
    pub watch: Watch,
}

/// What it came to.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// The hash of every message sent.
    pub hash: String,
    /// Seconds; absent where it failed.
    pub latency: Option<f64>,
    /// Why it failed, where it did.
    pub failure: Option<String>,
    /// Messages sent.
    pub messages: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Requests of modelled disks, those of background loads included.
    pub disk_requests: u64,
    /// Processor seconds that the run took, from the draw of the disks to the last message.
    pub cpu: f64,
    /// Requests of modelled disks for each of them.
    pub requests_per_cpu_second: f64,
    /// What became of the message that was damaged.
    pub damage: Option<String>,
    /// Every message, where the trace was kept.
    #[serde(skip)]
    pub records: Vec<Record>,
}

/// Runs it.
///
/// # Errors
/// When there is no such experiment or point, its accesses have no world of their own, or the message to be damaged is
/// never sent.
pub fn run(request: &Request) -> Result<Replay> {
    let Request { experiment, point, scheme, seed, number, watch } = request;
    crate::known(experiment)?;
    let accesses = || NotOffered(format!("{experiment} has no accesses that could be run again"));
    let found = parameters::find(experiment).ok_or_else(accesses)??;
    let labels = || found.points.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>().join(", ");
    let named = found.points.iter().find(|(label, _)| label == point);
    let (_, parameters) = named
        .ok_or_else(|| NotOffered(format!("{experiment} has no point `{point}`; it has {}", labels())))?;
    let parameters = &scheme.parameters(parameters);
    let refused = |why: String| Err(NotOffered(why).into());
    if parameters.sequence != 1 || parameters.clients != 1 {
        return refused(format!("{experiment}: its accesses share a world and cannot be run alone"));
    }
    if !scheme.fits(parameters) {
        let (scheme, redundancy) = (scheme.name(), parameters.redundancy);
        return refused(format!("{scheme} does not fit {point}: its redundancy is {redundancy}"));
    }
    if watch.flip.is_some() && parameters.access == Access::Write {
        return refused(format!("a damaged message is followed in reads only, and {experiment} writes"));
    }
    let before = cpu_seconds();
    let (world, id) = access::watched(parameters, *scheme, *seed, *number, *watch)?;
    let cpu = cpu_seconds() - before;
    let outcome = world.outcome(id);
    let messages = world.trace().messages();
    let damage = match (watch.flip, world.damage()) {
        (None, _) => None,
        (Some(flip), Damage::None) => {
            bail!("message {flip} is never sent: the run has {messages}, and the first is 1")
        }
        (Some(_), Damage::Body) => Some("found by its frame's checksum: the stream was lost".to_owned()),
        (Some(_), Damage::Payload) if outcome.corrupt_slices > 0 => {
            Some("found by its payload's checksums: the block was not used".to_owned())
        }
        (Some(_), Damage::Payload) => {
            // Its stream was over for the reader, who drops such payload unread.
            Some("dropped unread: it was no longer wanted".to_owned())
        }
    };
    let failure = match (&outcome.read, &outcome.written) {
        (Some(Err(error)), _) => Some(error.to_string()),
        (_, Some(Err(error))) => Some(error.to_string()),
        (None, None) => Some("it never ended".to_owned()),
        _ => None,
    };
    let disk_requests = world.modelled_requests();
    Ok(Replay {
        hash: format!("{:016x}", world.trace().hash()),
        latency: outcome.latency().filter(|_| failure.is_none()).map(|latency| latency.as_secs_f64()),
        failure,
        messages,
        events: world.events(),
        disk_requests,
        cpu,
        requests_per_cpu_second: disk_requests as f64 / cpu,
        damage,
        records: world.trace().records().to_vec(),
    })
}

/// Processor seconds of this thread.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(scheme: Scheme, seed: u64) -> Request {
        let (experiment, point) = ("robustore/disks".to_owned(), "disks=8".to_owned());
        Request { experiment, point, scheme, seed, number: 0, watch: Watch::default() }
    }

    #[test]
    fn a_seed_is_a_hash_and_another_seed_or_byte_another() {
        let plain = request(Scheme::RatelessB, 7);
        let first = run(&plain).unwrap();
        let again = run(&plain).unwrap();
        assert_eq!((&first.hash, first.latency, first.events), (&again.hash, again.latency, again.events));
        assert!(first.latency.is_some() && first.damage.is_none());
        assert_ne!(run(&request(Scheme::RatelessB, 8)).unwrap().hash, first.hash);
        let parameters = &parameters::find("robustore/disks").unwrap().unwrap();
        let (_, parameters) = parameters.points.iter().find(|(label, _)| label == "disks=8").unwrap();
        let sample = access::run(parameters, Scheme::RatelessB, 7, 0).unwrap();
        assert_eq!(first.hash, format!("{:016x}", sample.hash), "it is the experiment's own run");
    }

    #[test]
    fn every_damaged_message_is_found_or_dropped_unread() {
        let mut kept = request(Scheme::RatelessB, 7);
        kept.watch.keep_trace = true;
        let whole = run(&kept).unwrap();
        assert_eq!(whole.records.len() as u64, whole.messages);
        let mut hashes = std::collections::BTreeSet::from([whole.hash.clone()]);
        // Opens, credit, slices of the middle, cancels and ends.
        let last = whole.messages;
        let chosen = [1, 2, 9, 10, 11, last / 3, last / 2, last / 2 + 1, last - 20, last - 1, last];
        let mut said = std::collections::BTreeSet::new();
        for flip in chosen {
            let mut request = request(Scheme::RatelessB, 7);
            request.watch.flip = Some(flip);
            let damaged = run(&request).unwrap();
            assert!(hashes.insert(damaged.hash), "message {flip}: its change shows in the hash");
            assert_eq!(damaged.failure, None, "message {flip}: the read gets over it");
            said.extend(damaged.damage);
        }
        assert!(said.iter().any(|said| said.contains("frame's checksum")), "{said:?}");
        assert!(said.iter().any(|said| said.contains("payload's checksums")), "{said:?}");
        let mut beyond = request(Scheme::RatelessB, 7);
        beyond.watch.flip = Some(10 * last);
        assert!(run(&beyond).unwrap_err().to_string().contains("is never sent"));
    }

    #[test]
    fn a_block_without_another_copy_is_asked_for_again() {
        let mut request = request(Scheme::Stripe, 7);
        request.watch.keep_trace = true;
        let whole = run(&request).unwrap();
        let slice = |record: &Record| record.message.payload_bytes() > 0;
        let place = whole.records.iter().position(slice).unwrap();
        request.watch.flip = Some(place as u64 + 1);
        let damaged = run(&request).unwrap();
        assert!(damaged.records[place].damaged && !whole.records[place].damaged);
        assert_eq!(damaged.records[..place], whole.records[..place], "all before it is as it was");
        assert!(damaged.damage.unwrap().contains("payload's checksums"));
        assert_eq!(damaged.failure, None);
        assert!(damaged.messages > whole.messages, "{} and {}", damaged.messages, whole.messages);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let says = |change: fn(&mut Request), words: &str| {
            let mut request = request(Scheme::RatelessB, 1);
            change(&mut request);
            let error = format!("{:#}", run(&request).unwrap_err());
            assert!(error.contains(words), "{error}");
        };
        says(|request| request.experiment = "robustore/x".to_owned(), "no experiment named `robustore/x`");
        says(|request| request.point = "disks=3".to_owned(), "it has disks=2, disks=4");
        says(
            |request| {
                (request.experiment, request.point) = ("robustore/cache".into(), "cache_mib=0".into());
            },
            "share a world",
        );
        assert!(Scheme::named("raid").unwrap_err().to_string().contains("rateless-b"));
    }
}
