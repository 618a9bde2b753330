//! The robust soliton distribution (dissertation §2.2, LT codes), as whole-number thresholds.
//!
//! The graph follows from the draws, so the same parameters must give the same thresholds on every machine:
//! only operations that IEEE 754 fixes to the bit are used (the logarithm is our own series), and the result is
//! rounded to whole numbers.

/// Degrees 1 to K with the robust soliton's probabilities.
pub(crate) struct Soliton {
    /// `thresholds[d - 1]` is 2^32 times the probability of a degree of at most d, rounded.
    thresholds: Vec<u64>,
}

impl Soliton {
    /// For K originals and the parameters c and delta (both checked by the caller to be positive and finite); None where c
    /// is so large (above 1e300) that the weights have no finite sum.
    ///
    /// The text leaves the rounding of K/R open: to the nearest, at least 1 and at most K here. Where R < delta
    /// (tiny K) the spike's weight would be negative and is left out.
    pub(crate) fn new(k: u32, c: f64, delta: f64) -> Option<Self> {
        let size = f64::from(k);
        let r = c * natural_log(size / delta).max(0.0) * size.sqrt();
        let spike = if r > 0.0 { (size / r).round().clamp(1.0, size) as u32 } else { k };
        let spike_weight = if r > delta { r * natural_log(r / delta) / size } else { 0.0 };
        let weight = |degree: u32| {
            let d = f64::from(degree);
            let ideal = if degree == 1 { 1.0 / size } else { 1.0 / (d * (d - 1.0)) };
            let robust = match degree.cmp(&spike) {
                core::cmp::Ordering::Less => r / (d * size),
                core::cmp::Ordering::Equal => spike_weight,
                core::cmp::Ordering::Greater => 0.0,
            };
            ideal + robust
        };
        let mut sum = 0.0;
        let cumulative: Vec<f64> = (1..=k)
            .map(|degree| {
                sum += weight(degree);
                sum
            })
            .collect();
        let share = |part: &f64| (part / sum * 4_294_967_296.0).round() as u64;
        sum.is_finite().then(|| Self { thresholds: cumulative.iter().map(share).collect() })
    }

    /// The degree, 1 to K, that a uniform draw falls on.
    pub(crate) fn degree(&self, draw: u32) -> u32 {
        let below = self.thresholds.partition_point(|threshold| *threshold <= u64::from(draw));
        below.min(self.thresholds.len() - 1) as u32 + 1
    }
}

/// ln x for a positive normal x, by basic operations only (see the module).
fn natural_log(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | (1023 << 52));
    // ln m = 2 artanh((m - 1) / (m + 1)); the argument is at most 1/3, so 20 terms are below 1e-19.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut power, mut sum) = (t * t, t, 0.0);
    for term in 0..20 {
        sum += power / f64::from(2 * term + 1);
        power *= square;
    }
    2.0 * sum + f64::from(exponent) * core::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_the_logarithm() {
        for x in [1e-6, 0.5, 1.0, 1.5, 2.0, 10.0, 10240.0, 8192e6] {
            assert!((natural_log(x) - x.ln()).abs() < 1e-12 * x.ln().abs().max(1.0), "{x}");
        }
    }

    /// §2.2: mean degree, and the spike at K/R, for the parameters of the evaluation.
    #[test]
    fn probabilities_are_those_of_the_text() {
        let (k, c, delta) = (1024u32, 1.0, 0.5);
        let soliton = Soliton::new(k, c, delta).expect("the sum is finite");
        let r = c * (1024.0f64 / delta).ln() * 32.0;
        let tau = |i: f64| {
            if i < 4.0 {
                r / (i * 1024.0)
            } else if i == 4.0 {
                r * (r / delta).ln() / 1024.0
            } else {
                0.0
            }
        };
        let rho = |i: f64| if i == 1.0 { 1.0 / 1024.0 } else { 1.0 / (i * (i - 1.0)) };
        let beta: f64 = (1..=k).map(|i| rho(f64::from(i)) + tau(f64::from(i))).sum();
        let mut last = 0;
        for degree in 1..=k {
            let share = (soliton.thresholds[degree as usize - 1] - last) as f64 / 2f64.powi(32);
            last = soliton.thresholds[degree as usize - 1];
            let expected = (rho(f64::from(degree)) + tau(f64::from(degree))) / beta;
            assert!((share - expected).abs() < 1e-8, "degree {degree}: {share} for {expected}");
        }
        assert_eq!(last, 1 << 32);
    }

    #[test]
    fn tiny_k_is_guarded() {
        for k in 1..8 {
            for (c, delta) in [(1.0, 0.5), (2.0, 0.01), (0.03, 0.5), (10.0, 1e-6), (0.001, 1.0)] {
                let soliton = Soliton::new(k, c, delta).expect("the sum is finite");
                for draw in [0, 1, 1 << 20, 1 << 31, u32::MAX] {
                    assert!((1..=k).contains(&soliton.degree(draw)), "k {k}, c {c}, delta {delta}");
                }
            }
        }
    }
}
