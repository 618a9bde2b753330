//! `steadfast tune`: another redundancy for an object that is there.

use super::{connect_as, print_json, update::report};
use crate::{arguments::Tune, units::show_bytes};

pub(crate) async fn run(arguments: Tune) -> anyhow::Result<()> {
    let Tune { object, redundancy, class, cluster, output } = arguments;
    let client = connect_as(class, &cluster).await?;
    let tuned = client.tune(&object.bucket, &object.key, redundancy).await;
    client.tidy().await;
    let tuned = tuned?;
    if output.json {
        print_json(&report(&object, &tuned))?;
    } else {
        say!(
            "tuned {object}: D = {:.2} to {:.2}, {} to {} blocks for K = {}; {} written, {} freed in {:.2} s",
            tuned.redundancy_before(),
            tuned.redundancy(),
            tuned.stored_before,
            tuned.stored_after,
            tuned.originals,
            show_bytes(tuned.written_bytes),
            show_bytes(tuned.freed_bytes),
            tuned.latency.as_secs_f64()
        )?;
    }
    Ok(())
}
