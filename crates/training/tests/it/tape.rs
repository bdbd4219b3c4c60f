//! Derivatives in f64 by writing down every operation: slow, plain, and nothing that a derivation by hand could get wrong.

/// The number of a value.
pub type Var = usize;

/// All values so far, and what each depends on by how much.
#[derive(Default)]
pub struct Tape {
    values: Vec<f64>,
    /// Where the edges of each value end.
    ends: Vec<usize>,
    edges: Vec<(Var, f64)>,
}

impl Tape {
    pub fn value(&self, var: Var) -> f64 {
        self.values[var]
    }

    /// Notes a value with its derivatives by others.
    pub fn node(&mut self, value: f64, edges: impl IntoIterator<Item = (Var, f64)>) -> Var {
        self.edges.extend(edges);
        self.values.push(value);
        self.ends.push(self.edges.len());
        self.values.len() - 1
    }

    pub fn constant(&mut self, value: f64) -> Var {
        self.node(value, [])
    }

    pub fn constants(&mut self, values: &[f64]) -> Vec<Var> {
        values.iter().map(|value| self.constant(*value)).collect()
    }

    pub fn add(&mut self, a: Var, b: Var) -> Var {
        self.node(self.value(a) + self.value(b), [(a, 1.0), (b, 1.0)])
    }

    pub fn mul(&mut self, a: Var, b: Var) -> Var {
        let (x, y) = (self.value(a), self.value(b));
        self.node(x * y, [(a, y), (b, x)])
    }

    pub fn scale(&mut self, a: Var, by: f64) -> Var {
        self.node(self.value(a) * by, [(a, by)])
    }

    /// Applies a function with its derivative.
    pub fn apply(&mut self, a: Var, value: impl Fn(f64) -> f64, slope: impl Fn(f64) -> f64) -> Var {
        let x = self.value(a);
        self.node(value(x), [(a, slope(x))])
    }

    pub fn sum(&mut self, all: &[Var]) -> Var {
        let total = all.iter().map(|var| self.value(*var)).sum();
        self.node(total, all.iter().map(|var| (*var, 1.0)))
    }

    /// Multiplies a row by constant weights and adds that up.
    pub fn weigh(&mut self, weights: &[f64], x: &[Var]) -> Var {
        let total = weights.iter().zip(x).map(|(weight, x)| weight * self.value(*x)).sum();
        self.node(total, x.iter().copied().zip(weights.iter().copied()))
    }

    pub fn dot(&mut self, a: &[Var], b: &[Var]) -> Var {
        let pairs: Vec<(Var, Var, f64, f64)> =
            a.iter().zip(b).map(|(a, b)| (*a, *b, self.value(*a), self.value(*b))).collect();
        let total = pairs.iter().map(|(_, _, x, y)| x * y).sum();
        self.node(total, pairs.iter().flat_map(|(a, b, x, y)| [(*a, *y), (*b, *x)]))
    }

    /// Returns the derivative of one value by every other.
    pub fn gradient(&self, of: Var) -> Vec<f64> {
        let mut gradient = vec![0.0; self.values.len()];
        gradient[of] = 1.0;
        for var in (0..=of).rev() {
            let start = if var == 0 { 0 } else { self.ends[var - 1] };
            let own = gradient[var];
            if own != 0.0 {
                for (from, slope) in &self.edges[start..self.ends[var]] {
                    gradient[*from] += own * slope;
                }
            }
        }
        gradient
    }
}
