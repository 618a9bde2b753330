//! Accesses that follow one another in one world, to objects that are read again: what a cache keeps of one access is there
//! for the next.

use super::{
    access::{self, Sample},
    draw::{Disk, Draw},
    parameters::Parameters,
    scheme::Scheme,
};
use anyhow::Result;
use std::{collections::BTreeMap, ops::Range};
use steadfast_codes::rateless::Code;
use steadfast_protocol::{SegmentId, layout::SegmentLayout};
use steadfast_sim::{Cache, World};

/// Runs the accesses `numbers` of `scheme` under `seed`, the first of one sequence, one after the other: a sample of each.
///
/// # Errors
/// When there is no code for it, or an access fails: nothing fails in these experiments.
pub fn run(parameters: &Parameters, scheme: Scheme, seed: u64, numbers: Range<u32>) -> Result<Vec<Sample>> {
    let parameters = &scheme.parameters(parameters);
    let sequence = numbers.start / parameters.sequence;
    // Without a cache nothing is left of them.
    let warm = if parameters.cache_mib > 0 { parameters.warm_accesses } else { 0 };
    let before = (0..warm).map(|number| Draw::before(parameters, seed, sequence, number));
    let counted = numbers.map(|number| Draw::new(parameters, seed, number, 0));
    let mut reader = Reader::new(parameters, scheme, seed ^ u64::from(sequence));
    for draw in before {
        reader.read(&draw)?;
    }
    counted.map(|draw| reader.read(&draw)).collect()
}

/// A world and its client.
struct Reader<'a> {
    parameters: &'a Parameters,
    scheme: Scheme,
    world: World,
    client: u32,
    /// Objects that have been read: how to read them again.
    objects: BTreeMap<u32, (SegmentLayout, Code)>,
    /// Disks that are there.
    disks: BTreeMap<u32, Disk>,
}

impl<'a> Reader<'a> {
    fn new(parameters: &'a Parameters, scheme: Scheme, seed: u64) -> Self {
        let mut world = World::new(access::setup(parameters, seed));
        let cache = Cache {
            bytes: u64::from(parameters.cache_mib) << 20,
            bytes_per_s: Some(parameters.cache_mb_per_s * 1e6),
        };
        for _ in 0..parameters.disks_of.div_ceil(parameters.disks_per_node) {
            let node = world.add_node();
            if cache.bytes > 0 {
                world.set_cache(node, cache);
            }
        }
        let client = world.add_client();
        Self { parameters, scheme, world, client, objects: BTreeMap::new(), disks: BTreeMap::new() }
    }

    fn read(&mut self, draw: &Draw) -> Result<Sample> {
        let (parameters, world) = (self.parameters, &mut self.world);
        let now = world.now();
        for disk in &draw.disks {
            let medium = disk.medium_at(now);
            if self.disks.insert(disk.number, *disk).is_some() {
                world.set_medium(disk.device(), medium);
            } else {
                world.add_device(disk.number / parameters.disks_per_node, disk.device(), medium);
            }
        }
        let segment = SegmentId(u64::from(draw.object) + 1);
        if !self.objects.contains_key(&draw.object) {
            let (spec, code) = self.scheme.code(parameters, draw.code_seed)?;
            let holders = access::holders(parameters, self.scheme, draw, segment)?;
            let layout = access::layout(parameters, segment, spec, holders);
            // It has been there all the time: nobody asked for it.
            world.preload(&layout, draw.seed);
            self.objects.insert(draw.object, (layout, code));
        }
        let (layout, code) = &self.objects[&draw.object];
        let rule = self.scheme.rule();
        let code = code.clone();
        // The disks have just been drawn: nobody has seen them.
        let access = access::reading(parameters, self.scheme, rule, layout, code, draw.seed, |_| 0);
        let before = moved(world, draw);
        let (events, requests) = (world.events(), world.modelled_requests());
        let id = world.read(self.client, now, access);
        world.run();
        let outcome = access::succeeded(world, id, self.scheme)?;
        let (read, cached) = moved(world, draw);
        let mut sample = access::sample(parameters, world, outcome, read - before.0)?;
        sample.cached = (cached - before.1) as f64 / parameters.object_bytes() as f64;
        sample.events -= events;
        sample.requests -= requests;
        Ok(sample)
    }
}

/// Bytes that a draw's disks have read, and that caches gave in their place.
fn moved(world: &World, draw: &Draw) -> (u64, u64) {
    let done = draw.disks.iter().map(|disk| world.done(disk.device()));
    done.fold((0, 0), |(read, cached), done| (read + done.read_bytes, cached + done.cached_bytes))
}

#[cfg(test)]
mod tests {
    use super::{super::parameters, *};
    use crate::report::{mean, standard_deviation};

    #[test]
    fn caches_raise_bandwidth_and_variation_and_the_disks_do_the_rest() {
        let experiment = parameters::find("robustore/cache").unwrap().unwrap();
        let mut small = experiment.points[0].1.clone();
        (small.disks, small.disks_of, small.object_mib, small.block_kib) = (8, 16, 64, 256);
        (small.objects, small.warm_accesses, small.sequence) = (8, 8, 16);
        for scheme in [Scheme::Stripe, Scheme::RatelessB] {
            let [without, with] = [0, 128]
                .map(|cache_mib| run(&Parameters { cache_mib, ..small.clone() }, scheme, 5, 0..16).unwrap());
            let seconds =
                |samples: &[Sample]| samples.iter().map(|sample| sample.latency).collect::<Vec<_>>();
            let bandwidth =
                |samples: &[Sample]| mean(&seconds(samples).iter().map(|s| 1.0 / s).collect::<Vec<_>>());
            assert!(bandwidth(&with) > 1.2 * bandwidth(&without), "{scheme:?}");
            let spread = |samples: &[Sample]| standard_deviation(&seconds(samples)) / mean(&seconds(samples));
            assert!(spread(&with) > spread(&without), "{scheme:?}");
            assert!(without.iter().all(|sample| sample.cached == 0.0));
            for sample in &with {
                assert!(sample.cached + sample.medium_overhead >= sample.io_overhead - 1e-9, "{sample:?}");
            }
        }
    }
}
