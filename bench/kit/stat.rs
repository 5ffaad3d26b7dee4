//! Middles and extremes of a few rounds.

/// Whatever went wrong; a bench ends with its text.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The middle one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The smallest one: what the machine can do when nothing else runs.
pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
