//! Which of several models answers a request: chosen from what became of similar ones.
//!
//! A request is seen as [`Features`]. What answered, how likely each candidate was to, and what came of it is a
//! [`LoggedChoice`]. A [`Bandit`] has one regression per model; a [`Network`] has to beat it on choices that were held
//! out ([`train`]), or it is not served. [`explored`] makes probabilities of a decision, which are what the log needs:
//! without them nobody can tell afterwards what another choice would have given ([`evaluate`]).

mod bandit;
mod decision;
mod evaluate;
mod fastgrnn;
mod features;
mod logged;
mod network;
mod reward;
mod ridge;
mod simulation;
mod training;

pub use bandit::Bandit;
pub use decision::{Decision, EXPLORATION_MAX, drawn, explored};
pub use evaluate::{Estimate, Evaluation, PolicyEstimates, Unsupported, evaluate};
pub use features::{AskedText, FEATURES, Features};
pub use logged::{CHOICES_MAX, Candidate, LoggedChoice};
pub use network::{Network, NetworkError};
pub use reward::{Outcome, RewardRule, RewardRuleError};
pub use simulation::{Optimum, RegretCurve, regret_curve};
pub use training::{RouterReport, RouterVerdict, TrainError, train};
