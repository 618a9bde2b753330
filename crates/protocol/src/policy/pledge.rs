//! What an object promises beyond its bucket's policy: wished for at its put (dissertation App. B) and kept with it, so that whoever
//! changes, moves or tunes it later holds to it without having been told.
//!
//! Left out: the number of devices, which is a way to a pace and no promise, and the redundancy, which its layouts say.

use super::{DEVICES_MAX, Policy, TOLERATE_MAX};
use crate::words::counted;
use serde::{Deserialize, Serialize};

/// What an object promises beyond its bucket; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pledge {
    /// f: failure domains whose loss it survives; 0 for what the bucket says.
    pub tolerate: u32,
    /// Sites that it lies on at least; 0 for any number.
    pub sites: u32,
}

impl Pledge {
    /// Both kept.
    pub fn and(self, other: Pledge) -> Pledge {
        Pledge { tolerate: self.tolerate.max(other.tolerate), sites: self.sites.max(other.sites) }
    }

    /// Whether an object of a bucket can promise it.
    ///
    /// # Errors
    /// What stands against it, as text.
    pub fn check(&self, bucket: &Policy) -> Result<(), String> {
        let (sites, tolerate) = match bucket {
            Policy::Rateless(policy) => (DEVICES_MAX, policy.tolerate..=TOLERATE_MAX),
            // Copies and stripes are as their policy says, whatever is wished for.
            Policy::Stripe(_) | Policy::Replicated(_) => (DEVICES_MAX, 0..=0),
            Policy::Parity(policy) => (0, policy.least_chunks() - policy.data()..=policy.parity()),
        };
        if self.sites > sites {
            let wished = counted(self.sites, "site");
            return Err(format!("an object of policy `{bucket}` cannot promise {wished}: {sites} at most"));
        }
        if self.tolerate > 0 && !tolerate.contains(&self.tolerate) {
            let (least, most) = tolerate.into_inner();
            let wished = counted(self.tolerate, "failure");
            return Err(format!(
                "an object of policy `{bucket}` cannot promise to survive {wished}: {}",
                if most == 0 { "it has no such wish".to_owned() } else { format!("{least} to {most}") }
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_promises_what_its_bucket_can_keep_and_no_less_than_it_does() {
        let taken = |bucket: &str, tolerate, sites| {
            Pledge { tolerate, sites }.check(&bucket.parse().expect("a policy")).is_ok()
        };
        for (bucket, tolerates, sites) in [
            ("rateless:tolerate=2", Vec::from_iter(2..=16), 1024),
            ("stripe", vec![], 1024),
            ("replicated:copies=3", vec![], 1024),
            ("parity:code=rs(6,4)", vec![2], 0),
            ("parity:code=rs(6,4),least=5", vec![1, 2], 0),
        ] {
            assert!(
                taken(bucket, 0, 0) && taken(bucket, 0, sites) && !taken(bucket, 0, sites + 1),
                "{bucket}"
            );
            for tolerate in (1..20).chain([u32::MAX]) {
                assert_eq!(taken(bucket, tolerate, 0), tolerates.contains(&tolerate), "{bucket}: {tolerate}");
            }
        }
    }
}
