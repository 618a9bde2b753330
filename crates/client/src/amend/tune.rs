//! Another redundancy for an object that is there: blocks are minted or dropped, all others stay.

use super::{
    AmendError, AmendReport,
    fences::Left,
    session::{Amendment, Contents, Written, code},
};
use crate::Client;
use bytes::BytesMut;
use std::{collections::BTreeSet, time::Instant};
use steadfast_codes::rateless::Code;
use steadfast_protocol::{
    IndexRanges,
    durability::Rule,
    layout::{CodeKind, ParityGeometry, SegmentLayout},
    plan::{self, Places, Replaced, TrimError, Wish},
    policy::Policy,
};
use steadfast_transfer::Originals;

/// The largest redundancy, as of a bucket's policy.
const REDUNDANCY_MAX: f64 = 15.0;

impl Client {
    /// Gives an object the redundancy D = N/K - 1 (dissertation §5.3.2), whatever its bucket has for new ones. Blocks are
    /// minted from the originals, which are decoded for it, or dropped, originals never; all others stay where they are.
    ///
    /// # Errors
    /// When what is left would not survive the loss of as many failure domains as the bucket, or the object, promises, or there is too
    /// little room: the object is what it was before. Blocks on devices out of reach are not counted.
    pub async fn tune(&self, bucket: &str, key: &str, redundancy: f64) -> Result<AmendReport, AmendError> {
        if !(0.0..=REDUNDANCY_MAX).contains(&redundancy) {
            return Err(AmendError::Redundancy { asked: redundancy, most: REDUNDANCY_MAX });
        }
        let start = Instant::now();
        let left = &Left::of(self, (bucket, key));
        self.amend((bucket, key), left, async |client, found| {
            if let Some(layout) =
                found.segments.iter().find(|layout| layout.code.kind == CodeKind::Replicated)
            {
                let what = if layout.code.originals == 1 { "copies" } else { "a stripe" };
                return Err(AmendError::NotCoded { what });
            }
            let chunks = |layout: &SegmentLayout| ParityGeometry::of_layout(layout);
            if let Some(shape) = found.segments.iter().find_map(chunks) {
                return Err(AmendError::Fixed { chunks: shape.chunks, data: shape.data });
            }
            if let Policy::Parity(policy) = &found.policy {
                // An empty file has none, and will have as many.
                return Err(AmendError::Fixed { chunks: policy.chunks(), data: policy.data() });
            }
            let segments = found.segments.len();
            let object = (bucket, key);
            let class = Wish { quality: client.options.quality.class(), ..Wish::default() };
            let amendment =
                Amendment::begin(client, left, object, found, (segments, false), (class, 0)).await?;
            amendment
                .finish(start, async |amendment| {
                    let rule = Rule { redundancy, ..Rule::of(&amendment.begun.policy) };
                    let layouts = amendment.layouts.clone();
                    let dropped = all_dropped(amendment, &layouts, rule).await?;
                    let (mut changes, mut minted) = (false, false);
                    for (position, (layout, mut dropped)) in layouts.iter().zip(dropped).enumerate() {
                        if minted {
                            // That takes a while, and a device may be lost by now.
                            dropped =
                                all_dropped(amendment, std::slice::from_ref(layout), rule).await?.remove(0);
                        }
                        minted |= dropped.is_err();
                        if let Some(changed) = tune(amendment, layout, rule, dropped).await? {
                            amendment.layouts[position] = changed;
                            changes = true;
                        }
                    }
                    Ok(changes)
                })
                .await
        })
        .await
    }
}

/// The blocks to drop of each segment, or why there are too few of them already.
///
/// # Errors
/// With the smallest redundancy that all segments can have, where what is asked for is below it.
async fn all_dropped(
    amendment: &Amendment<'_>,
    layouts: &[SegmentLayout],
    rule: Rule,
) -> Result<Vec<Result<IndexRanges, TrimError>>, AmendError> {
    let mut all = Vec::with_capacity(layouts.len());
    let mut refused: Option<(f64, TrimError)> = None;
    for layout in layouts {
        let places = amendment.places(&BTreeSet::new(), layout);
        let dropped = dropped(code(layout)?, layout, &places, rule, amendment.client.seed).await;
        if let Err(error @ TrimError::BelowTolerance { smallest, .. }) = &dropped
            && refused.as_ref().is_none_or(|(most, _)| smallest > most)
        {
            refused = Some((*smallest, error.clone()));
        }
        all.push(dropped);
    }
    refused.map_or(Ok(all), |(_, error)| Err(error.into()))
}

/// Tunes one segment; none where it is as it should be.
async fn tune(
    amendment: &mut Amendment<'_>,
    layout: &SegmentLayout,
    rule: Rule,
    dropped: Result<IndexRanges, TrimError>,
) -> Result<Option<SegmentLayout>, AmendError> {
    match dropped {
        Ok(dropped) if dropped.is_empty() => Ok(None),
        Ok(dropped) => {
            let (name, merged) = (amendment.begun.segments[0], IndexRanges::new());
            let written = Written { name, shares: Vec::new() };
            Ok(Some(amendment.amended(layout, &Replaced { dropped, merged }, &written)))
        }
        Err(TrimError::Unmet { .. }) => {
            let places = amendment.places(&BTreeSet::new(), layout);
            mint(amendment, layout, &places, rule).await.map(Some)
        }
        Err(refused) => Err(refused.into()),
    }
}

/// The blocks to drop, chosen off the runtime's thread: rank tests take a while.
async fn dropped(
    code: Code,
    layout: &SegmentLayout,
    places: &Places,
    rule: Rule,
    seed: u64,
) -> Result<IndexRanges, TrimError> {
    let held = places.existing(layout, &IndexRanges::new());
    let counted: u32 = held.iter().map(|held| held.blocks.count()).sum();
    let out_of_reach = layout.stored_blocks().saturating_sub(counted);
    let domains = places.domains;
    let choosing = tokio::task::spawn_blocking(move || {
        let trim = plan::trim(&code, rule, domains, &held, seed);
        let trim = trim.map_err(|error| error.beside(out_of_reach))?;
        let mut dropped = IndexRanges::new();
        for (held, (_, keep)) in held.iter().zip(&trim.keep) {
            dropped.insert_all(&held.blocks.difference(keep));
        }
        Ok(dropped)
    });
    choosing.await.expect("choosing does not panic")
}

/// Mints blocks until the rule holds.
async fn mint(
    amendment: &mut Amendment<'_>,
    layout: &SegmentLayout,
    places: &Places,
    rule: Rule,
) -> Result<SegmentLayout, AmendError> {
    let _memory = amendment.client.memory.hold(layout.length);
    let originals = amendment.decode(layout).await?.into_iter().map(BytesMut::freeze).collect();
    let contents =
        Contents::Originals(Originals::whole(originals, layout.block_bytes, layout.code.originals));
    let none = IndexRanges::new();
    let replaced = Replaced::of(places, layout, none.clone());
    let given = plan::given(places, layout, &replaced, &none);
    let written = amendment.write(layout, rule, places, given, contents).await?;
    let written = written.expect("any block can be made of the originals");
    Ok(amendment.amended(layout, &replaced, &written))
}
