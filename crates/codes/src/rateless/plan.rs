//! From the blocks at hand to the program that computes the originals in place.
//!
//! Peeling with inactivation (the symbolic half; RFC 6330 §5.4.2 is the nearest standard):
//!
//! 1. Peel: a row with one open column resolves it, short rows first. On a stall the column in most rows of two
//!    open columns is *inactivated*: set aside as an unknown u. Afterwards every column is
//!    `x = y + d u` with y from payload alone, and as many rows are left as columns were set aside.
//! 2. The rows left are `A u = z`: invert A. Over GF(2) the products with A's inverse go by fours (Kronrod's
//!    method), in the kernel.
//! 3. Emit only what an original needs, found from the last step backwards. A column whose d is zero is done in
//!    one step. Where nothing needs y, x is computed from its row once u is known. Else y comes first and then the
//!    difference d u: from u, or, where that is longer, from the differences of the row's columns. So what depends
//!    on no unknown is read for y only.
//!
//! Where all of it lies is `program`'s business.

use super::code::{Code, Entry};
use super::coefficients::Coefficients;
use super::program::{Builder, Home, Program, Source, Value};
use crate::kernel::{gf256, product::Product};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Unknowns are computed by a product from so many on; picked by eye: its tables must serve enough of them.
const DENSE_FROM: usize = 16;

/// The rows at hand: one a kept block, and one a parity column, its *constraint* (the column and the originals it
/// sums add up to zero, or to the payload of those that were folded).
pub(crate) struct Rows {
    entries: Vec<Entry>,
    /// Where each kept block's entries are: folding leaves gaps.
    places: Vec<Range<u32>>,
    constraints: Vec<Vec<Entry>>,
}

impl Rows {
    /// No blocks yet.
    pub(crate) fn new(code: &Code) -> Self {
        let mut rows = Self { entries: Vec::new(), places: Vec::new(), constraints: Vec::new() };
        rows.reset(code);
        rows
    }

    /// No blocks again.
    pub(crate) fn reset(&mut self, code: &Code) {
        self.entries.clear();
        self.places.clear();
        self.constraints.resize_with(code.parity_count(), Vec::new);
        for (parity, constraint) in self.constraints.iter_mut().enumerate() {
            let column = (code.k() as usize + parity) as u16;
            let columns = code.parity_members(parity).iter().copied().chain([column]);
            constraint.clear();
            constraint.extend(columns.map(|column| Entry { column, coefficient: 1 }));
        }
    }

    /// The next kept block's row.
    pub(crate) fn keep(&mut self, row: &[Entry]) {
        let start = self.entries.len() as u32;
        self.entries.extend_from_slice(row);
        self.places.push(start..self.entries.len() as u32);
    }

    /// Takes what `folded` says out of the row of a kept block.
    pub(crate) fn fold(&mut self, block: usize, mut folded: impl FnMut(&Entry) -> bool) {
        let place = &mut self.places[block];
        let mut end = place.start;
        for at in place.clone() {
            let entry = self.entries[at as usize];
            if !folded(&entry) {
                self.entries[end as usize] = entry;
                end += 1;
            }
        }
        place.end = end;
    }

    /// The row of a kept block, less what was folded.
    pub(crate) fn kept(&self, block: usize) -> &[Entry] {
        let place = &self.places[block];
        &self.entries[place.start as usize..place.end as usize]
    }

    /// The constraint row of parity column `parity`, less what was folded.
    pub(crate) fn constraint(&mut self, parity: usize) -> &mut Vec<Entry> {
        &mut self.constraints[parity]
    }
}

/// A program over the kept blocks (slots `0..blocks`), the sums of folded constraints (the slots behind), and where it
/// leaves the originals.
pub(crate) struct Plan {
    pub(crate) program: Program,
    /// The block whose buffer holds each original afterwards.
    pub(crate) home: Vec<u32>,
    /// Columns set aside.
    pub(crate) inactive: usize,
}

/// Columns looked through at once for the one in most pairs.
const STRETCH: usize = 128;
const NONE: u32 = u32::MAX;
/// No column of any code.
const NO_COLUMN: u16 = u16::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    Open,
    /// Arrived as it is, in this block.
    Known(u32),
    /// Resolved by this row.
    Peeled(u32),
    /// Set aside as this unknown.
    Inactive(u32),
}

pub(super) struct Solver {
    originals: usize,
    blocks: usize,
    /// Slots of blocks and of the sums of the first constraints.
    buffers: usize,
    pub(super) columns: Vec<Column>,
    /// Entries of all rows; repair rows first (row r is block r), then one constraint row a parity column.
    entries: Vec<Entry>,
    starts: Vec<u32>,
    /// Rows of the columns that were open at first, one column after the other, and where each one's begin.
    rows_of: Vec<u32>,
    rows_of_starts: Vec<u32>,
    /// Open columns of each row, and their XOR.
    degree: Vec<u32>,
    sum: Vec<u16>,
    /// The row resolves a column or is a known original.
    used: Vec<bool>,
    /// Rows of two open columns each column is in; a signed type, whose maximum every processor finds in vectors.
    pairs: Vec<i16>,
    pub(super) order: Vec<(u32, u16)>,
    pub(super) inactive: Vec<u16>,
    ready: BinaryHeap<Reverse<(u32, u32)>>,
}

/// The plan for these rows, of which the first `folded` constraints have payload; None when they do not give all
/// originals.
pub(crate) fn plan(code: &Code, rows: &Rows, folded: usize) -> Option<Plan> {
    let mut solver = Solver::new(code, rows, folded);
    if !solver.peel(!code.peels()) {
        return None;
    }
    let left = solver.rows_left();
    let (dependence, inverse) = if code.is_binary() {
        super::unknowns::binary(&solver, &left)?
    } else {
        let dependence = solver.dependence();
        let inverse = solver.invert(&dependence, &left)?;
        (Coefficients::bytes(solver.inactive.len(), dependence), inverse)
    };
    Some(solver.emit(&dependence, &inverse))
}

/// The inverse of u of the rows left, and which those are: unknown r is the sum of their z by row r.
pub(super) struct Inverse {
    pub(super) rows: Vec<u32>,
    pub(super) matrix: Coefficients,
}

impl Solver {
    fn new(code: &Code, at_hand: &Rows, folded: usize) -> Self {
        let (k, parities, blocks) = (code.k() as usize, code.parity_count(), at_hand.places.len());
        let constraints = &at_hand.constraints;
        let length = at_hand.entries.len() + constraints.iter().map(Vec::len).sum::<usize>();
        let (mut entries, mut starts) =
            (Vec::with_capacity(length), Vec::with_capacity(blocks + parities + 1));
        starts.push(0);
        let kept = (0..blocks).map(|block| at_hand.kept(block));
        for row in kept.chain(constraints.iter().map(Vec::as_slice)) {
            entries.extend_from_slice(row);
            starts.push(entries.len() as u32);
        }
        let rows = blocks + parities;
        let mut solver = Self {
            originals: k,
            blocks,
            buffers: blocks + folded,
            columns: vec![Column::Open; k + parities],
            entries,
            starts,
            rows_of: Vec::new(),
            rows_of_starts: vec![0; k + parities + 1],
            degree: vec![0; rows],
            sum: vec![0; rows],
            used: vec![false; rows],
            pairs: vec![0; k + parities],
            order: Vec::new(),
            inactive: Vec::new(),
            ready: BinaryHeap::new(),
        };
        for row in 0..blocks {
            if let [Entry { column, coefficient: 1 }] = *solver.row(row as u32)
                && solver.columns[column as usize] == Column::Open
            {
                solver.columns[column as usize] = Column::Known(row as u32);
                solver.used[row] = true;
            }
        }
        for row in 0..rows as u32 {
            for place in solver.range(row) {
                let column = solver.entries[place].column;
                if solver.columns[column as usize] == Column::Open {
                    solver.rows_of_starts[column as usize] += 1;
                    solver.degree[row as usize] += 1;
                    solver.sum[row as usize] ^= column;
                }
            }
        }
        // Counts become ends, and ends become starts as the rows are put in place from the last one on.
        let mut count = 0;
        for start in &mut solver.rows_of_starts {
            count += *start;
            *start = count;
        }
        solver.rows_of = vec![0; count as usize];
        for row in (0..rows as u32).rev() {
            for place in solver.range(row) {
                let column = solver.entries[place].column as usize;
                if solver.columns[column] == Column::Open {
                    solver.rows_of_starts[column] -= 1;
                    solver.rows_of[solver.rows_of_starts[column] as usize] = row;
                }
            }
        }
        for row in 0..rows as u32 {
            match solver.degree[row as usize] {
                1 => solver.ready.push(Reverse((solver.len(row), row))),
                2 => solver.count_pair(row),
                _ => {}
            }
        }
        solver
    }

    fn range(&self, row: u32) -> Range<usize> {
        self.starts[row as usize] as usize..self.starts[row as usize + 1] as usize
    }

    /// Places in `rows_of`; none for a column known from the start.
    fn rows_of(&self, column: usize) -> Range<usize> {
        self.rows_of_starts[column] as usize..self.rows_of_starts[column + 1] as usize
    }

    pub(super) fn row(&self, row: u32) -> &[Entry] {
        &self.entries[self.range(row)]
    }

    fn len(&self, row: u32) -> u32 {
        self.range(row).len() as u32
    }

    /// Counts a row of two open columns.
    fn count_pair(&mut self, row: u32) {
        let open = |entry: &&Entry| self.columns[entry.column as usize] == Column::Open;
        let one = self.row(row).iter().find(open).expect("one of two open columns").column;
        // A count that stays at its maximum is the greatest all the same.
        for column in [one, self.sum[row as usize] ^ one] {
            let pairs = &mut self.pairs[column as usize];
            *pairs = pairs.saturating_add(1);
        }
    }

    /// Step 1; false when an original stays open (without `inactivate`, peeling alone has to do).
    fn peel(&mut self, inactivate: bool) -> bool {
        loop {
            while let Some(Reverse((_, row))) = self.ready.pop() {
                if self.degree[row as usize] == 1 {
                    let column = self.sum[row as usize];
                    self.used[row as usize] = true;
                    self.order.push((row, column));
                    self.close(column, Column::Peeled(row));
                }
            }
            let Some(column) = self.stalled_on() else {
                return self.columns[..self.originals].iter().all(|column| *column != Column::Open);
            };
            if !inactivate {
                return false;
            }
            self.inactive.push(column);
            self.close(column, Column::Inactive(self.inactive.len() as u32 - 1));
        }
    }

    /// The open column to set aside: in most rows of two, else in most rows.
    fn stalled_on(&self) -> Option<u16> {
        // Only open columns have pairs, so plain scans do; this runs once a column set aside.
        let most_of = |stretch: &[i16]| stretch.iter().copied().max().unwrap_or(0);
        let most = most_of(&self.pairs);
        if most > 0 {
            let stretch = self.pairs.chunks(STRETCH).position(|stretch| most_of(stretch) == most)?;
            let mut columns = stretch * STRETCH..;
            return columns.find(|column| self.pairs[*column] == most).map(|column| column as u16);
        }
        let rows = |column: usize| self.rows_of(column).len();
        let open = |column: &usize| self.columns[*column] == Column::Open && rows(*column) > 0;
        (0..self.columns.len())
            .filter(open)
            .max_by_key(|column| (rows(*column), Reverse(*column)))
            .map(|column| column as u16)
    }

    fn close(&mut self, column: u16, state: Column) {
        self.columns[column as usize] = state;
        for place in self.rows_of(column as usize) {
            let row = self.rows_of[place];
            let (degree, sum) = (&mut self.degree[row as usize], &mut self.sum[row as usize]);
            *degree -= 1;
            *sum ^= column;
            match *degree {
                1 => {
                    for column in [column, *sum] {
                        let pairs = &mut self.pairs[column as usize];
                        *pairs = pairs.saturating_sub(1);
                    }
                    self.ready.push(Reverse((self.len(row), row)));
                }
                2 => self.count_pair(row),
                _ => {}
            }
        }
    }

    /// d of every column, u bytes each.
    fn dependence(&self) -> Vec<u8> {
        let width = self.inactive.len();
        let mut dependence = vec![0; self.columns.len() * width];
        for (unknown, column) in self.inactive.iter().enumerate() {
            dependence[*column as usize * width + unknown] = 1;
        }
        let mut vector = vec![0; width];
        for (row, column) in &self.order {
            vector.fill(0);
            let own = self.depend(&mut vector, *row, *column, &dependence);
            gf256::scale(&mut vector, gf256::inverse(own));
            dependence[*column as usize * width..][..width].copy_from_slice(&vector);
        }
        dependence
    }

    /// Adds what `row` depends on but for `column`, and gives that one's coefficient.
    fn depend(&self, vector: &mut [u8], row: u32, column: u16, dependence: &[u8]) -> u8 {
        let mut own = 1;
        for entry in self.row(row) {
            if entry.column == column {
                own = entry.coefficient;
            } else {
                let other = &dependence[entry.column as usize * vector.len()..][..vector.len()];
                gf256::mul_acc(vector, other, entry.coefficient);
            }
        }
        own
    }

    fn rows_left(&self) -> Vec<u32> {
        if self.inactive.is_empty() {
            return Vec::new();
        }
        (0..self.used.len() as u32).filter(|row| !self.used[*row as usize]).collect()
    }

    /// Step 2: Gauss-Jordan on the rows left; None when they have not full rank.
    fn invert(&self, dependence: &[u8], left: &[u32]) -> Option<Inverse> {
        let width = self.inactive.len();
        // [ A | I ] by row; a row's place in I is that of the column it is the pivot of.
        let with_room = |row: &u32| {
            let mut vector = vec![0; 2 * width];
            self.depend(&mut vector[..width], *row, NO_COLUMN, dependence);
            vector
        };
        let mut rows: Vec<Vec<u8>> = left.iter().map(with_room).collect();
        let mut left = left.to_vec();
        for column in 0..width {
            let found = (column..rows.len()).find(|row| rows[*row][column] != 0)?;
            rows.swap(column, found);
            left.swap(column, found);
            let mut pivot = std::mem::take(&mut rows[column]);
            pivot[width + column] = 1;
            let lead = pivot[column];
            gf256::scale(&mut pivot, gf256::inverse(lead));
            for row in rows.iter_mut().filter(|row| !row.is_empty()) {
                let factor = row[column];
                gf256::mul_acc(&mut row[column..], &pivot[column..], factor);
            }
            rows[column] = pivot;
        }
        left.truncate(width);
        let inverse = rows.iter().take(width).flat_map(|row| row[width..].iter().copied());
        Some(Inverse { rows: left, matrix: Coefficients::bytes(width, inverse.collect()) })
    }

    /// Step 3.
    fn emit(&self, dependence: &Coefficients, inverse: &Inverse) -> Plan {
        let needs = Needs::find(self, dependence, inverse);
        let columns = self.columns.len();
        let mut emitter = Emitter {
            solver: self,
            dependence,
            needs: &needs,
            builder: Builder::new(0, self.buffers),
            partial: vec![NONE; columns],
            difference: vec![NONE; columns],
            value: vec![NONE; columns],
        };
        emitter.forward();
        emitter.unknowns(inverse);
        emitter.backward();
        let homes = emitter.homes();
        let (program, home) = emitter.builder.finish(&homes);
        Plan { program, home, inactive: self.inactive.len() }
    }
}

/// What has to be computed, from the last step backwards.
struct Needs {
    /// y of a column.
    partial: Vec<bool>,
    /// x - y of a column that depends on unknowns; its y is needed as well.
    difference: Vec<bool>,
    /// x of a column.
    value: Vec<bool>,
    /// The difference is summed from unknowns rather than from the differences of the row's columns.
    direct: Vec<bool>,
}

impl Needs {
    fn find(solver: &Solver, dependence: &Coefficients, inverse: &Inverse) -> Self {
        let columns = solver.columns.len();
        let mut needs = Self {
            partial: vec![false; columns],
            difference: vec![false; columns],
            value: vec![false; columns],
            direct: vec![false; columns],
        };
        needs.value[..solver.originals].fill(true);
        // Every z: an inverse has no column of zeroes.
        for row in &inverse.rows {
            for entry in solver.row(*row) {
                needs.partial[entry.column as usize] = true;
            }
        }
        for (row, column) in solver.order.iter().rev() {
            let own = *column as usize;
            let others = || {
                solver.row(*row).iter().map(|entry| entry.column as usize).filter(move |other| *other != own)
            };
            let weight = dependence.weight(own);
            if weight == 0 {
                if needs.value[own] || needs.partial[own] {
                    needs.partial[own] = true;
                    others().for_each(|other| needs.partial[other] = true);
                }
                continue;
            }
            if needs.value[own] && !needs.partial[own] {
                others().for_each(|other| needs.value[other] = true);
                continue;
            }
            if needs.partial[own] {
                others().for_each(|other| needs.partial[other] = true);
            }
            if needs.value[own] || needs.difference[own] {
                let depending = others().filter(|other| dependence.weight(*other) > 0);
                needs.direct[own] = weight <= depending.clone().count();
                if needs.direct[own] {
                    dependence.each(own, |unknown, _| needs.value[solver.inactive[unknown] as usize] = true);
                } else {
                    depending.for_each(|other| match solver.columns[other] {
                        Column::Inactive(_) => needs.value[other] = true,
                        _ => needs.difference[other] = true,
                    });
                }
            }
        }
        needs
    }
}

struct Emitter<'a> {
    solver: &'a Solver,
    dependence: &'a Coefficients,
    needs: &'a Needs,
    builder: Builder,
    /// y by column.
    partial: Vec<Value>,
    /// x - y by column, u itself where that is the column.
    difference: Vec<Value>,
    /// x by column.
    value: Vec<Value>,
}

/// What is added up of a row's columns.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Partials,
    Differences,
    Values,
}

impl Emitter<'_> {
    /// y of the columns that need one, in peeling order.
    fn forward(&mut self) {
        for (column, state) in self.solver.columns.iter().enumerate() {
            if let Column::Known(block) = state {
                self.partial[column] = *block;
                self.value[column] = *block;
            }
        }
        let mut sources = Vec::new();
        for (row, column) in &self.solver.order {
            let own = *column as usize;
            if !self.needs.partial[own] {
                continue;
            }
            self.collect(*row, *column, Of::Partials, &mut sources);
            self.partial[own] = self.builder.sum(sources.drain(..));
            if self.dependence.weight(own) == 0 {
                self.value[own] = self.partial[own];
            }
        }
    }

    /// Appends what `row` adds up for `column`: its payload, unless these are differences, and its other columns.
    fn collect(&self, row: u32, column: u16, of: Of, sources: &mut Vec<Source>) {
        let entries = self.solver.row(row);
        let own = entries.iter().find(|entry| entry.column == column).map_or(1, |entry| entry.coefficient);
        // Ones are all there is over GF(2).
        let scale = if own == 1 { 1 } else { gf256::inverse(own) };
        if of != Of::Differences && (row as usize) < self.solver.buffers {
            sources.push(Source { value: row, coefficient: scale });
        }
        let of = match of {
            Of::Partials => &self.partial,
            Of::Differences => &self.difference,
            Of::Values => &self.value,
        };
        for entry in entries.iter().filter(|entry| entry.column != column) {
            // An unknown has no y, and what depends on none has no difference.
            let value = of[entry.column as usize];
            if value != NONE {
                let coefficient =
                    if scale == 1 { entry.coefficient } else { gf256::mul(scale, entry.coefficient) };
                sources.push(Source { value, coefficient });
            }
        }
    }

    /// z, and from it the unknowns.
    fn unknowns(&mut self, inverse: &Inverse) {
        let mut row_sources = Vec::new();
        let mut right = Vec::with_capacity(inverse.rows.len());
        for row in &inverse.rows {
            self.collect(*row, NO_COLUMN, Of::Partials, &mut row_sources);
            right.push(self.builder.sum(row_sources.drain(..)));
        }
        let wanted: Vec<usize> = (0..self.solver.inactive.len())
            .filter(|u| self.needs.value[self.solver.inactive[*u] as usize])
            .collect();
        let rows: Option<Vec<&[u64]>> =
            wanted.iter().map(|unknown| inverse.matrix.row_of_bits(*unknown)).collect();
        if let Some(rows) = rows.filter(|rows| rows.len() >= DENSE_FROM) {
            let words = Product::words(right.len());
            let bits = rows.iter().flat_map(|row| row[..words].iter().copied()).collect();
            let first = self.builder.product(right, wanted.len(), bits);
            for (unknown, value) in wanted.into_iter().zip(first..) {
                self.found(unknown, value);
            }
            return;
        }
        for unknown in wanted {
            inverse.matrix.each(unknown, |place, coefficient| {
                row_sources.push(Source { value: right[place], coefficient });
            });
            let value = self.builder.sum(row_sources.drain(..));
            self.found(unknown, value);
        }
    }

    fn found(&mut self, unknown: usize, value: Value) {
        let column = self.solver.inactive[unknown] as usize;
        self.value[column] = value;
        self.difference[column] = value;
    }

    /// x of the columns that depend on unknowns.
    fn backward(&mut self) {
        let needs = self.needs;
        let mut sources = Vec::new();
        for (row, column) in &self.solver.order {
            let own = *column as usize;
            let wanted = needs.value[own] || needs.difference[own];
            if !wanted || self.dependence.weight(own) == 0 {
                continue;
            }
            if !needs.partial[own] {
                self.collect(*row, *column, Of::Values, &mut sources);
                self.value[own] = self.builder.sum(sources.drain(..));
                continue;
            }
            if needs.direct[own] {
                self.dependence.each(own, |unknown, coefficient| {
                    let value = self.value[self.solver.inactive[unknown] as usize];
                    sources.push(Source { value, coefficient });
                });
            } else {
                self.collect(*row, *column, Of::Differences, &mut sources);
            }
            let partial = self.partial[own];
            if !needs.difference[own] {
                sources.push(Source { value: partial, coefficient: 1 });
                self.value[own] = self.builder.sum(sources.drain(..));
            } else if needs.value[own] {
                [self.difference[own], self.value[own]] =
                    self.builder.sum_and_more(sources.drain(..), partial);
            } else {
                self.difference[own] = self.builder.sum(sources.drain(..));
            }
        }
    }

    /// Where originals shall be: in the block of the row that gave them, or, from a constraint, in any that is free.
    fn homes(&self) -> Vec<(Value, Home)> {
        let blocks = self.solver.blocks as u32;
        let home = |original: usize| match self.solver.columns[original] {
            Column::Known(row) | Column::Peeled(row) if row < blocks => Home::Block(row),
            _ => Home::AnyBelow(blocks),
        };
        let values = self.value[..self.solver.originals].iter();
        values
            .enumerate()
            .map(|(original, value)| {
                assert_ne!(*value, NONE, "every original was needed, so computed");
                (*value, home(original))
            })
            .collect()
    }
}
