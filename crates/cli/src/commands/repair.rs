//! `steadfast repair`.

use super::{connect_as, doings::Moved, print_json};
use crate::{arguments::Repair, progress, units::show_bytes};
use std::time::Duration;
use steadfast_client::{Degraded, DrainOptions};
use steadfast_protocol::{
    drain::{Limits, REPAIR_LOOKS_MAX, Totals},
    words::counted,
};

pub(crate) async fn run(arguments: Repair) -> anyhow::Result<()> {
    let Repair { keep_going, class, cluster, output } = arguments;
    let client = connect_as(class, &cluster).await?;
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
    if output.json {
        return print_json(&Moved::of(&report.totals, report.latency));
    }
    say!("{}", told(&report.totals, report.latency))
}

/// What a repair did, told for a person.
fn told(totals: &Totals, latency: Duration) -> String {
    if totals.objects == 0 && !totals.more {
        return "nothing is degraded".to_owned();
    }
    let rest = match totals.more {
        true => "more was found at every look: others write what is degraded, run it again",
        false => "nothing is degraded any more",
    };
    format!("completed {}; {rest}", Moved::of(totals, latency))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_says_whether_there_is_more_to_do() {
        let told = |objects: u64, more| {
            let (blocks, bytes) = (2 * objects, objects << 20);
            let totals = Totals { objects, blocks, bytes, more, ..Totals::default() };
            super::told(&totals, Duration::from_secs(2))
        };
        assert_eq!(told(0, false), "nothing is degraded");
        let all = told(3, false);
        assert!(all.starts_with("completed 3 objects, 6 blocks, 3.0 MiB in 2.0 s ("), "{all}");
        assert!(all.ends_with("); nothing is degraded any more"), "{all}");
        // Also where it completed none of what others wrote meanwhile.
        for objects in [0, 3] {
            let some = told(objects, true);
            assert!(some.starts_with(&format!("completed {objects} objects, ")), "{some}");
            assert!(some.contains("; more was found at every look: "), "{some}");
            assert!(some.ends_with(", run it again"), "{some}");
        }
    }

    #[test]
    fn what_is_degraded_is_told_with_what_to_do_and_nothing_where_nothing_is() {
        let told = |segments, more| degraded(&Degraded { segments, lacking_bytes: 3 << 20, more });
        assert_eq!(told(0, false), None);
        let said = told(1, false).unwrap();
        assert!(said.starts_with("degraded: 1 segment with fewer parity chunks"), "{said}");
        assert!(said.contains("(3.0 MiB missing)") && said.contains("`steadfast repair`"), "{said}");
        let said = told(2, true).unwrap();
        assert!(said.contains("at least 2 segments"), "{said}");
        assert!(said.contains("(at least 3.0 MiB missing)"), "{said}");
    }
}
