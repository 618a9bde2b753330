//! `steadfast bucket create|ls|rm`.

use super::{connect, print_json, show_time};
use crate::arguments::Bucket;
use serde_json::json;
use steadfast_protocol::policy::Policy;

pub(crate) async fn run(command: Bucket) -> anyhow::Result<()> {
    match command {
        Bucket::Create { name, policy, cluster, output } => {
            connect(&cluster).await?.create_bucket(&name, policy).await?;
            if output.json {
                print_json(&json!({ "bucket": name, "policy": policy.to_string() }))?;
            } else {
                say!("made bucket {name} with policy {policy}")?;
            }
            if let Policy::Parity(parity) = policy
                && !parity.changes_in_place()
            {
                tell!(
                    "with so small a reserve every change stores its segment anew; from reserve={}KiB on small changes \
                     are made in place",
                    parity.reserve_min() >> 10
                );
            }
        }
        Bucket::Rm { name, cluster, output } => {
            connect(&cluster).await?.remove_bucket(&name).await?;
            if output.json {
                print_json(&json!({ "removed": name }))?;
            } else {
                say!("removed bucket {name}")?;
            }
        }
        Bucket::Ls { cluster, output } => {
            for bucket in connect(&cluster).await?.buckets().await? {
                if output.json {
                    print_json(&json!({
                        "bucket": bucket.name,
                        "policy": bucket.policy.to_string(),
                        "created": show_time(bucket.created),
                    }))?;
                } else {
                    say!("{}  {}", bucket.name, bucket.policy)?;
                }
            }
        }
    }
    Ok(())
}
