//! Over how many failure domains and sites the chosen devices lie.
//!
//! Devices are ranked so that domains and sites take turns, and mostly the first of the ranking are spread enough. Where those that
//! stall or refused come last they need not be: then one that is needed is chosen before a better one.

use super::{
    Candidate,
    choose::{domain_name, plural},
};
use crate::policy::{Domain, Policy};
use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What chosen devices are to lie on at least.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    domain: Domain,
    domains: usize,
    sites: usize,
}

impl Spread {
    /// As the policy needs, on as many sites as are wished for; 0 for no wish.
    pub(super) fn new(policy: &Policy, sites: u32) -> Self {
        Self { domain: policy.domain(), domains: policy.domains() as usize, sites: sites as usize }
    }

    /// The number of devices below which there is no such choice, and what asks for it.
    pub(super) fn least(&self) -> (usize, &'static str) {
        if self.sites > self.domains { (self.sites, "sites") } else { (self.domains, plural(self.domain)) }
    }

    /// Whether these lie on as many sites as are wished for.
    pub(super) fn has_sites(&self, devices: &[&Candidate]) -> bool {
        let sites: BTreeSet<&str> = devices.iter().map(|candidate| candidate.site.as_str()).collect();
        sites.len() >= self.sites
    }

    /// How many of the ranking, of its first `least` on, are spread enough; all where no fewer are.
    pub(super) fn shortest(&self, ranked: &[&Candidate], least: usize) -> usize {
        let picked = self.pick(ranked, 0);
        picked.last().map_or(least, |&last| least.max(last + 1)).min(ranked.len())
    }

    /// Puts `count` devices first that are spread enough, each the best there is for it, in the order of the ranking.
    pub(super) fn put_first(&self, ranked: &mut Vec<&Candidate>, count: usize) {
        let picked = self.pick(ranked, count);
        let (first, rest): (Vec<_>, Vec<_>) =
            ranked.iter().copied().enumerate().partition(|(place, _)| picked.contains(place));
        *ranked = first.into_iter().chain(rest).map(|(_, candidate)| candidate).collect();
    }

    /// The places in the ranking of the best of each site and of each domain, as many as are needed, and of the best others up to
    /// `count` in all. Just the first `count` where those are spread enough.
    fn pick(&self, ranked: &[&Candidate], count: usize) -> BTreeSet<usize> {
        let (mut sites, mut domains, mut picked) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (place, candidate) in ranked.iter().enumerate() {
            if sites.len() < self.sites && sites.insert(candidate.site.as_str()) {
                domains.insert(domain_name(self.domain, candidate));
                picked.insert(place);
            }
        }
        for (place, candidate) in ranked.iter().enumerate() {
            if domains.len() < self.domains && domains.insert(domain_name(self.domain, candidate)) {
                picked.insert(place);
            }
        }
        for place in 0..ranked.len() {
            if picked.len() < count {
                picked.insert(place);
            }
        }
        picked
    }

    /// Puts devices first that go round the failure domains, each round in the same order: with copies that start one
    /// device further on (dissertation §6.2.1), any f + 1 neighbours are then of different domains, around the end too.
    /// Returns how many: of all such choices of at most `wanted` devices the largest that is on enough sites.
    pub(super) fn put_rounds_first(&self, ranked: &mut Vec<&Candidate>, wanted: usize) -> usize {
        let mut domains: Vec<Vec<&Candidate>> = Vec::new();
        let mut places = BTreeMap::new();
        for &candidate in ranked.iter() {
            let place = *places.entry(domain_name(self.domain, candidate)).or_insert(domains.len());
            match domains.get_mut(place) {
                Some(devices) => devices.push(candidate),
                None => domains.push(vec![candidate]),
            }
        }
        let most = domains.iter().map(Vec::len).max().unwrap_or(0);
        let choices = (1..=most).filter_map(|rounds| {
            let held: Vec<&Vec<&Candidate>> = domains.iter().filter(|held| held.len() >= rounds).collect();
            let wide = held.len().min(wanted / rounds);
            let best: Vec<&Candidate> = held.iter().map(|held| held[0]).collect();
            let picked = self.pick(&best, wide);
            let chosen: Vec<&Vec<&Candidate>> = picked.iter().map(|&place| held[place]).collect();
            let on: Vec<&Candidate> = chosen.iter().map(|held| held[0]).collect();
            (wide >= self.domains && wide == chosen.len() && self.has_sites(&on)).then_some((rounds, chosen))
        });
        // Fewer rounds where equal: more domains share the work.
        let Some((rounds, chosen)) =
            choices.max_by_key(|(rounds, chosen)| (rounds * chosen.len(), Reverse(*rounds)))
        else {
            return wanted;
        };
        let first: Vec<&Candidate> =
            (0..rounds).flat_map(|round| chosen.iter().map(move |held| held[round])).collect();
        let rest: Vec<&Candidate> = ranked
            .iter()
            .copied()
            .filter(|one| !first.iter().any(|other| other.device == one.device))
            .collect();
        let devices = first.len();
        *ranked = first.into_iter().chain(rest).collect();
        devices
    }
}
