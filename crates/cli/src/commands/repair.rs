//! `steadfast repair`.

use super::{connect, doings::Moved, print_json};
use crate::{arguments::Repair, progress, units::show_bytes};
use steadfast_client::{Degraded, DrainOptions};
use steadfast_protocol::{
    drain::{Limits, REPAIR_LOOKS_MAX},
    words::counted,
};

pub(crate) async fn run(arguments: Repair) -> anyhow::Result<()> {
    let Repair { keep_going, cluster, output } = arguments;
    let client = connect(&cluster).await?;
    let before = client.degraded().await?;
    let bar = progress::bytes_and_count(before.lacking_bytes, output.json);
    let looks_max = Some(REPAIR_LOOKS_MAX);
    let limits = Limits { keep_going, looks_max, ..DrainOptions::default().limits };
    let repaired = client
        .repair(limits, |totals| {
            bar.set_length(before.lacking_bytes.max(totals.bytes));
            bar.set_position(totals.bytes);
            bar.set_message(counted(totals.objects, "object"));
        })
        .await;
    bar.finish_and_clear();
    client.tidy().await;
    let report = repaired?;
    let totals = &report.totals;
    if output.json {
        return print_json(&Moved::of(totals, report.latency));
    }
    if totals.objects == 0 && !totals.more {
        return say!("nothing is degraded");
    }
    let rest = match totals.more {
        true => "more was found at every look: others write what is degraded, run it again",
        false => "nothing is degraded any more",
    };
    say!("completed {}; {rest}", Moved::of(totals, report.latency))
}

/// What is degraded, told for a person; nothing where nothing is.
pub(super) fn degraded(found: &Degraded) -> Option<String> {
    let Degraded { segments, lacking_bytes, more } = *found;
    let least = if more { "at least " } else { "" };
    (segments > 0).then(|| {
        format!(
            "degraded: {least}{} with fewer parity chunks than the bucket's code ({least}{} missing), written while too few \
             servers were well; they are completed once there are more (`steadfast repair`: at once)",
            counted(segments, "segment"),
            show_bytes(lacking_bytes)
        )
    })
}
