use serde_json::{Value, json};

/// What was measured several times.
#[derive(Clone, Debug)]
pub struct Spread {
    /// In the order in which they were measured.
    pub all: Vec<f64>,
    pub best: f64,
    pub median: f64,
}

impl Spread {
    /// Of rates: more is better.
    pub fn of_rates(all: Vec<f64>) -> Self {
        let best = all.iter().copied().fold(0.0, f64::max);
        Self { best, median: median(&all), all }
    }

    /// Of times: less is better.
    pub fn of_times(all: Vec<f64>) -> Self {
        let best = all.iter().copied().fold(f64::INFINITY, f64::min);
        Self { best, median: median(&all), all }
    }

    pub fn as_json(&self) -> Value {
        json!({ "best": self.best, "median": self.median, "all": self.all })
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len => f64::midpoint(sorted[(len - 1) / 2], sorted[len / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_highest_rate_or_the_shortest_time() {
        let rates = Spread::of_rates(vec![3.0, 9.0, 4.0]);
        assert_eq!((rates.best, rates.median), (9.0, 4.0));
        let times = Spread::of_times(vec![3.0, 9.0, 4.0, 6.0]);
        assert_eq!((times.best, times.median), (3.0, 5.0));
    }
}
