//! Fairness between tenants: who has had the least goes first.

use std::collections::HashMap;

use crate::Tenant;

/// A generated token takes a step of its own, a prompt's is one of many.
const GENERATED: u64 = 2;

/// Maximum credit, in tokens, of a tenant that comes back.
const CREDIT_MAX: u64 = 256;

/// The tokens that each tenant was served.
#[derive(Debug, Default)]
pub(crate) struct FairShares {
    served: HashMap<Tenant, u64>,
}

impl FairShares {
    /// A tenant comes with a request while those of `active` have some already. If it had none it starts a token before the
    /// one of them that has had least: who was away has not saved up anything but to be the next. What it was served lately
    /// counts, or else many short requests, one after the other, would always be the next; but who had a lot waits no longer than
    /// for a little of it.
    pub(crate) fn join<'a>(&mut self, tenant: &Tenant, active: impl Iterator<Item = &'a Tenant> + Clone) {
        if active.clone().any(|other| other == tenant) {
            return;
        }
        match active.map(|other| self.served(other)).min() {
            Some(least) => {
                let served = self.served(tenant).clamp(least.saturating_sub(1), least + CREDIT_MAX);
                self.served.insert(tenant.clone(), served);
            }
            // Nobody to compare with: counting starts again.
            None => {
                self.served.clear();
            }
        }
    }

    pub(crate) fn serve(&mut self, tenant: &Tenant, prompt_tokens: usize, generated_tokens: usize) {
        let tokens = prompt_tokens as u64 + GENERATED * generated_tokens as u64;
        match self.served.get_mut(tenant) {
            Some(served) => *served += tokens,
            None => drop(self.served.insert(tenant.clone(), tokens)),
        }
    }

    pub(crate) fn served(&self, tenant: &Tenant) -> u64 {
        self.served.get(tenant).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_away_is_the_next_and_no_more() {
        let [a, b, c] = ["a", "b", "c"].map(Tenant::new);
        let mut shares = FairShares::default();
        shares.join(&a, [].into_iter());
        shares.serve(&a, 1000, 0);
        shares.join(&b, [&a].into_iter());
        assert_eq!(shares.served(&b), 999, "it is not owed what was served before it came");
        shares.serve(&b, 0, 250);
        shares.join(&c, [&a, &b].into_iter());
        assert_eq!(shares.served(&c), 999);
        shares.serve(&c, 10, 0);
        shares.join(&c, [&a, &b, &c].into_iter());
        assert_eq!(shares.served(&c), 1009, "a second request changes nothing");
        shares.join(&b, [&a, &c].into_iter());
        assert_eq!(shares.served(&b), 1256, "of 500 more than others it owes so much");
        shares.join(&a, [].into_iter());
        assert_eq!([&a, &b, &c].map(|tenant| shares.served(tenant)), [0; 3]);
    }
}
