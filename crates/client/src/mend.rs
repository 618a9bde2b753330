//! Degraded segments completed without being asked, once more failure domains serve again: drives the core that says when.

use crate::{Client, ClientError, Options, RepairError, moves::Work};
use std::{
    convert::Infallible,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use steadfast_protocol::{
    NodeId, SegmentId,
    drain::{Limits, Looked, Mending, REPAIR_LOOKS_MAX, Totals, Turn},
    plan::Quality,
};

/// One object at a time, so that others notice little of it; and the others where one cannot be completed.
const LIMITS: Limits =
    Limits { objects_max: 1, bytes_max: 64 << 20, keep_going: true, looks_max: Some(REPAIR_LOOKS_MAX) };

/// Looks every so often whether anything of the cluster at `cluster` is degraded, and completes it where it is the turn of the storage
/// server `own`; for as long as it is polled.
pub async fn mend(cluster: &str, own: NodeId, every: Duration, options: Options) -> Infallible {
    let quality = Quality { background: true, ..options.quality };
    // A storage server has other things to do.
    let options = Options { quality, threads: 1, ..options };
    // What cannot be completed would come first each time, and might take all of each turn.
    let (mut client, mut core, mut reached) = (None, Mending::default(), None);
    loop {
        // Each begins with its turn: who looks in the middle of it would be at it in the next server's, or have little of its own.
        tokio::time::sleep(turn(every).left).await;
        if !core.looks() {
            continue;
        }
        let known = match client.take() {
            Some(known) => Ok(known),
            None => Client::connect(cluster, options.clone()).await,
        };
        let looked = async {
            let known = known?;
            let looked = look(&known, (own, every), &mut reached).await;
            known.tidy().await;
            client = Some(known);
            looked
        };
        match looked.await {
            Ok(looked) => core.looked(looked),
            // A metadata server out of reach is told of by whoever has more to do with it.
            Err(error) => tracing::debug!(%error, "degraded segments were not looked for"),
        }
    }
}

/// Looks, and completes what is degraded after the segment that was `reached` in its last turn, and then the rest.
async fn look(
    client: &Client,
    (own, every): (NodeId, Duration),
    reached: &mut Option<SegmentId>,
) -> Result<Looked, ClientError> {
    // The smaller question first: all servers ask it, always.
    if !client.any_degraded().await? {
        return Ok(Looked::Well);
    }
    // Servers whose clocks differ have the same turn now and then, or none has it: the next comes soon.
    let (start, Turn { number, begins, .. }) = (Instant::now(), turn(every));
    if !Mending::is_turn(&client.registry().await?, own, number) {
        return Ok(Looked::Others);
    }
    let work = Work::Complete { until: Some(start + begins), after: *reached };
    let totals = client.move_all(&work, LIMITS, &Totals::default(), |_| {}).await?;
    *reached = totals.reached;
    let (objects, bytes, stuck) = (totals.objects, totals.bytes, totals.stuck.len());
    // A second look began at the front again: it had come to the end.
    let (more, looks) = (totals.more, totals.looks);
    if objects > 0 {
        tracing::info!(objects, bytes, stuck, elapsed = ?start.elapsed(), "degraded objects were completed");
    } else if stuck > 0 {
        let why = RepairError::Stuck(totals);
        tracing::debug!(%why, more, "nothing that is degraded can be completed yet");
        // Behind what there was time for others may come that can.
        return Ok(if more && looks < 2 { Looked::More } else { Looked::InVain });
    }
    Ok(Looked::Well)
}

/// Whose turn it is now, of servers that look so often.
fn turn(every: Duration) -> Turn {
    Turn::at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), every)
}
